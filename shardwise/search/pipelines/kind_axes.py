"""The time to send tensors between stages on devices of several kinds.

Every stage has equally many devices of one kind, and stages of one kind are consecutive. Between
two of these a hop is as for one kind (`hops.py`), unless the profile has a slower path between
nodes of their group. There, and from kind to kind, all devices of a stage send their shares of x
bytes at once, each to its counterpart, through the cards of their nodes; with m devices of the
sending stage in a node and m' of the receiving one, and B, B' the slower of their cards and of the
path between the groups,

    max(m / B, m' / B') x + the larger of both latencies

Gradients of parameters shared by several stages are summed over all stages, by the formula for
several kinds (`hardware/joint.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from shardwise.cost.space import SearchMesh
from shardwise.hardware import Blocks, Devices, Hardware, JointLinks, Mesh
from shardwise.hardware.blocks import Block
from shardwise.search.pipelines.hops import StageAxes


@dataclass(frozen=True)
class KindAxes:
    """The stages of a bundle: stage r is on `devices` devices of the group `order[r]`, the stages
    of one group after another."""

    hardware: Hardware
    bundle: Devices
    order: tuple[str, ...]
    devices: int
    inside: Mapping[str, StageAxes] = field(compare=False)
    """The axes that number the stages of each group."""

    @classmethod
    def of(
        cls, hardware: Hardware, bundle: Devices, order: Sequence[str], devices: int
    ) -> KindAxes | None:
        """Returns the links between these stages, or None if a group's stages are not whole axes of
        its mesh."""
        inside = {}
        for name, count in bundle.counts:
            alone = hardware.of_group(name)
            axes = StageAxes.of(alone, Mesh.build(alone, count), count // devices)
            if axes is None:
                return None
            inside[name] = axes
        return cls(hardware, bundle, tuple(order), devices, inside)

    def hop_s(self, sender: int, share_bytes: float) -> float:
        """Returns the seconds of sending a device's shares of a micro-batch's tensors from a stage
        to the next; 0 without shares."""
        here, there = self.order[sender], self.order[sender + 1]
        if not share_bytes:
            return 0.0
        links, ends = self._links, ((sender, sender + 1), (sender + 1, sender))
        is_near = links.node(sender) == links.node(sender + 1)
        if here == there and (is_near or self.hardware.path(here, there) is None):
            return self.inside[here].hop_s(sender - self.order.index(here), share_bytes)
        per_byte = max(self._in_a_node(self.order[a]) / links.bandwidth(a, b) for a, b in ends)
        latency_s = max(links.latency_s(a) for a, _ in ends)
        return per_byte * share_bytes + latency_s

    def scattered_s(
        self, sender: int, mesh: SearchMesh, shares: Sequence[tuple[float, tuple[int, ...]]]
    ) -> float:
        """Returns `hop_s`: on several kinds all devices send their whole shares."""
        return self.hop_s(sender, sum(share_bytes for share_bytes, _ in shares))

    def sum_s(self, share_bytes: float) -> float:
        """Returns the seconds in which the devices of all stages sum a gradient, by its share."""
        support = tuple(range(len(self.order)))
        sizes = np.array([share_bytes])
        return float(self._links.times("all_reduce", sizes, support, 1)[0])

    @property
    def nodes(self) -> int:
        """The nodes with at least one of the devices."""
        return Blocks.of(self.hardware, self.bundle).nodes

    def _in_a_node(self, name: str) -> int:
        """Returns the maximum number of a stage's devices in one node of a group."""
        alone = self.hardware.of_group(name)
        return Mesh.build(alone, self.devices).per_node

    @cached_property
    def _links(self) -> JointLinks:
        """The links between stages, each as one block in the first of its nodes."""
        first_node, blocks = 0, {}
        of_group = dict(self.bundle.counts)
        for name, count in self.bundle.counts:
            mesh = Mesh.build(self.hardware.of_group(name), count)
            blocks[name] = [
                Block(name, first_node + stage * self.devices // mesh.per_node)
                for stage in range(of_group[name] // self.devices)
            ]
            first_node += mesh.nodes
        placed = tuple(block for name in dict.fromkeys(self.order) for block in blocks[name])
        most = max(self._in_a_node(name) for name in of_group)
        return JointLinks(Blocks(self.hardware, self.bundle, most, placed))
