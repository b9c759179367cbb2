"""The time to send tensors from one stage to the next.

Rank r of a pipeline has the devices r n/p to (r + 1) n/p - 1 of n, and one stage or several. Every
device sends its share of each tensor to its counterpart in the next stage, all at once: a
send_receive between two devices n/p apart, with all siblings on the link
(`hardware/collectives.py`). The ranks decide which levels of links it crosses: two in one node stay
inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol

import numpy as np

from shardwise.cost.space import SearchMesh
from shardwise.hardware import GroupShape, Hardware, Mesh, collective_times


class RankLinks(Protocol):
    """Links between the ranks of a pipeline, for hops and for sums over ranks."""

    def hop_s(self, sender: int, share_bytes: float) -> float:
        """Returns the seconds of a hop from a rank to the next, by a device's shares."""
        ...

    def scattered_s(
        self, sender: int, mesh: SearchMesh, shares: Sequence[tuple[float, tuple[int, ...]]]
    ) -> float:
        """Returns the same, with equal shares sent in parts by the devices that have them."""
        ...

    def sum_s(self, share_bytes: float) -> float:
        """Returns the seconds in which the devices of all ranks sum a gradient, by its share."""
        ...


@dataclass(frozen=True)
class StageAxes:
    """The outermost axes of the mesh of all devices, which number the ranks of a pipeline."""

    hardware: Hardware
    mesh: Mesh
    axes: int

    @classmethod
    def of(cls, hardware: Hardware, mesh: Mesh, stages: int) -> StageAxes | None:
        """Returns the axes of this many stages, or None if they are not whole axes of the mesh."""
        sizes = [axis.size for axis in mesh.axes]
        for axes in range(len(sizes) + 1):
            if prod(sizes[:axes]) == stages:
                return cls(hardware, mesh, axes)
        return None

    def hop_s(self, sender: int, share_bytes: float) -> float:
        """Returns the seconds of sending a device's shares of a micro-batch's tensors from a rank
        to the next, from the last to the first; 0 without shares."""
        if not share_bytes:
            return 0.0
        sizes = np.array([share_bytes])
        shape = self._pair(sender)
        return float(collective_times(self.hardware, "send_receive", sizes, shape)[0])

    def scattered_s(
        self, sender: int, mesh: SearchMesh, shares: Sequence[tuple[float, tuple[int, ...]]]
    ) -> float:
        """Returns the same, with equal shares sent in parts and gathered on the other side
        (Narayanan et al. 2021, §4.1).

        `shares` are bytes and the axes of `mesh`, that of a rank's devices, along which devices
        have the same.
        """
        parts_bytes, gathers_s = 0.0, 0.0
        for share_bytes, axes in shares:
            repeats = prod(mesh.axes[axis].size for axis in axes)
            parts_bytes += share_bytes / repeats
            if repeats > 1 and share_bytes:
                sizes, shape = np.array([share_bytes]), mesh.group_shape(sum(1 << a for a in axes))
                times = collective_times(self.hardware, "all_gather", sizes, shape)
                gathers_s += float(times[0])
        return self.hop_s(sender, parts_bytes) + gathers_s

    def sum_s(self, share_bytes: float) -> float:
        """Returns the seconds in which the devices of all stages sum a gradient, by its share."""
        shape = self.mesh.group_shape(tuple(range(self.axes)))
        sizes = np.array([share_bytes])
        return float(collective_times(self.hardware, "all_reduce", sizes, shape)[0])

    def _pair(self, sender: int) -> GroupShape:
        """Returns the group of a rank and the next: that of the outermost axis along which they
        differ."""
        sizes = [axis.size for axis in self.mesh.axes[: self.axes]]
        receiver = (sender + 1) % prod(sizes)
        strides = [prod(sizes[i + 1 :]) for i in range(self.axes)]
        changed = next(
            i for i, stride in enumerate(strides) if sender // stride != receiver // stride
        )
        return self.mesh.group_shape((changed,))
