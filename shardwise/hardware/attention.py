"""Measured attention: how much of a device's peak fused attention kernels reach.

A table has the utilisation u of causal attention forward, of one dtype and one size d of a head, on
a grid of ln (batch · query heads) and ln s, s the sequence length; between the knots ln u is
bilinear, outside the grid it is that of the nearest point inside. Only the half of the scores that
the mask leaves counts. With F the peak of the device,

    forward    T = 2 b h s² d / (F u)
    backward   T = 5 b h s² d / (F u · BACKWARD)

since backward computes the scores again: five products for forward's two (Dao 2023, §4.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shardwise.hardware.grid import Floats, LogGrid

BACKWARD = 0.85
"""The utilisation of backward over that of forward, which alone was measured.

FlashAttention-2 reaches up to 73 % of an A100's peak forward and up to 63 % backward (Dao 2023,
§1); FlashAttention-4 on a B200 1418 TFLOP/s of causal attention forward and 1118 to 1209 backward
(Dao-AILab/flash-attention pull request 2280): 0.86, 0.79 to 0.85.
"""


@dataclass(frozen=True)
class AttentionTable:
    """Utilisations of causal attention of one dtype and one size of a head.

    `heads` (of all sequences of a batch together) and `lengths` (of a sequence) are the knots,
    ascending; `utilisation` has a value for each of their pairs, lengths fastest.
    """

    dtype: str
    head_size: float
    heads: tuple[float, ...]
    lengths: tuple[float, ...]
    utilisation: tuple[float, ...]

    @cached_property
    def _grid(self) -> LogGrid:
        return LogGrid((self.heads, self.lengths), self.utilisation)

    def of(self, heads: Floats, lengths: Floats) -> Floats:
        """Returns the utilisation of attention forward, arrays of equal shape."""
        return self._grid.of(heads, lengths)


def nearest(tables: Sequence[AttentionTable], head_size: float) -> AttentionTable:
    """Returns the table whose size of a head is nearest in the logarithm, the first of equals."""
    return min(tables, key=lambda table: abs(np.log(table.head_size / head_size)))
