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

Kernels load 16 bytes at once. Where rows of an operand or of the result begin elsewhere, because n
or k is not a multiple of that many elements (a vocabulary of 50257), other kernels run, which reach
the share `unaligned` of the peak at most.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shardwise.hardware.grid import Floats, LogGrid

IDLE, BUSY = 0.1, 0.5
"""The utilisations from which a product slows the clocks at all, and as far as they go."""
LOAD_BYTES = 16


@dataclass(frozen=True)
class ProductTable:
    """Utilisations of products of one dtype.

    `m`, `n`, `k` are the knots, ascending; `utilisation` has a value for each of their triples, k
    fastest. `unaligned` is the share of the peak of products whose rows are no multiple of 16
    bytes; at 1 they run like any other.
    """

    dtype: str
    m: tuple[float, ...]
    n: tuple[float, ...]
    k: tuple[float, ...]
    utilisation: tuple[float, ...]
    unaligned: float = 1.0

    @cached_property
    def _grid(self) -> LogGrid:
        return LogGrid((self.m, self.n, self.k), self.utilisation)

    def of(self, m: Floats, n: Floats, k: Floats) -> Floats:
        """Returns the utilisation of products, arrays of equal shape."""
        return self._grid.of(m, n, k)


def is_unaligned(n: Floats, k: Floats, item_bytes: float) -> NDArray[np.bool_]:
    """Returns of which products the rows begin between multiples of `LOAD_BYTES`.

    Shares of unequal sizes have mean sizes that are no whole numbers: the largest counts.
    """
    per_load = max(LOAD_BYTES // max(int(item_bytes), 1), 1)
    left_over = np.maximum(np.ceil(n - 1e-6) % per_load, np.ceil(k - 1e-6) % per_load)
    unaligned: NDArray[np.bool_] = left_over > 0.0
    return unaligned


def sustained(utilisation: Floats, clock: float) -> Floats:
    """Returns the utilisation that training sustains."""
    share = np.clip((utilisation - IDLE) / (BUSY - IDLE), 0.0, 1.0)
    return utilisation * (1.0 - (1.0 - clock) * share)
