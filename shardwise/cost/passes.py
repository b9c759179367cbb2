"""Work and time of a group's members in forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from shardwise.hardware.operator_tables import Direction
from shardwise.hardware.sources import MODELLED, Codes
from shardwise.sharding.layout import Floats


@dataclass(frozen=True)
class Passes:
    """Seconds of each member in forward and in backward, and their sources, shape (n, M)."""

    forward_s: Floats
    backward_s: Floats
    forward_codes: Codes
    backward_codes: Codes

    @classmethod
    def none(cls, count: int, members: int) -> Passes:
        shape = (count, members)
        codes = np.full((2, *shape), MODELLED, dtype=np.int8)
        return cls(np.zeros(shape), np.zeros(shape), *codes)

    @property
    def both_s(self) -> Floats:
        """Both passes of all members, shape (n,)."""
        return np.asarray(self.forward_s.sum(axis=1) + self.backward_s.sum(axis=1))

    def set(self, position: int, direction: Direction, times_s: Floats, codes: Codes) -> None:
        """Sets the seconds of one member in one direction, for every assignment."""
        backward = direction == "backward"
        (self.backward_s if backward else self.forward_s)[:, position] = times_s
        (self.backward_codes if backward else self.forward_codes)[:, position] = codes

    def shorten(self, positions: list[int], direction: Direction, most_s: Floats) -> None:
        """Limits the total time of some members to `most_s` (n,), in one direction.

        Their ratios stay; shortened times count as modelled.
        """
        backward = direction == "backward"
        times_s = self.backward_s if backward else self.forward_s
        codes = self.backward_codes if backward else self.forward_codes
        total_s = times_s[:, positions].sum(axis=1)
        factor = np.minimum(most_s / np.maximum(total_s, most_s), 1.0)[:, None]
        times_s[:, positions] *= factor
        codes[:, positions] = np.where(factor < 1.0, MODELLED, codes[:, positions])


@dataclass(frozen=True)
class Work:
    """One member's work in one direction under every assignment: operations, bytes moved.

    `kernel_s` returns the time by measured kernels of the device, if it has such.
    """

    direction: Direction
    flops: Floats
    moved_bytes: Floats
    dtype: str
    kernel_s: Kernel | None = None


Kernel = Callable[[Work], Floats]
"""Returns seconds by measured kernels, shape (n,)."""
