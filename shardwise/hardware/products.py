"""Measured matrix products: how much of a device's roofline a product of (m, n, k) reaches.

A table has the utilisation u of products A (m × k) · B (k × n) of one dtype on a grid of ln m, ln n
and ln k; between the knots ln u is trilinear, outside the grid it is that of the nearest point
inside. With F the peak and W the memory bandwidth of the device,

    R(m, n, k) = max(2 m n k / F, bytes of A, B and the result / W),    T = R / u

One table serves every operator that is a product: a linear layer and both its gradients, batched
products, convolutions as the products that they stand for (docs/costs.md, Time of an operator).

Tables are measured with kernels alone, at the highest clocks. A product that keeps the arithmetic
units busy draws so much power that the clocks fall in training: from a utilisation of one half on a
device sustains the share c of it (`Device.sustained_clock`), below one tenth all of it, between
these a share in proportion,

    u' = u (1 - (1 - c) s),    s = (u - 1/10) / (1/2 - 1/10), at least 0 and at most 1
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shardwise.hardware.grid import Floats, LogGrid

IDLE, BUSY = 0.1, 0.5
"""The utilisations from which a product slows the clocks at all, and as far as they go."""


@dataclass(frozen=True)
class ProductTable:
    """Utilisations of products of one dtype.

    `m`, `n`, `k` are the knots, ascending; `utilisation` has a value for each of their triples, k
    fastest.
    """

    dtype: str
    m: tuple[float, ...]
    n: tuple[float, ...]
    k: tuple[float, ...]
    utilisation: tuple[float, ...]

    @cached_property
    def _grid(self) -> LogGrid:
        return LogGrid((self.m, self.n, self.k), self.utilisation)

    def of(self, m: Floats, n: Floats, k: Floats) -> Floats:
        """Returns the utilisation of products, arrays of equal shape."""
        return self._grid.of(m, n, k)


def sustained(utilisation: Floats, clock: float) -> Floats:
    """Returns the utilisation that training sustains."""
    share = np.clip((utilisation - IDLE) / (BUSY - IDLE), 0.0, 1.0)
    return utilisation * (1.0 - (1.0 - clock) * share)
