"""Operators that are matrix products: their sizes (m, n, k) on a device, and their measured times.

Sizes follow from what a device computes and touches, whatever the operator calls its dimensions.
With F operations and |A|, |B|, |C| elements of the operands and the result on a device,

    k = F / 2|C|,    m = F / 2|B|,    b = |A| / m k,    n = F / 2 m k b

for b products of m × k by k × n at once; a convolution stands for the one product of m output
places by n channels, over k inputs of a window (im2col; b = 1). The gradients are products of the
same three tensors: of A m × n × k, of B k × m × n.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwise.graph.factors import FACTORS
from shardwise.graph.graph import Operator
from shardwise.hardware.device import Device
from shardwise.hardware.products import ProductTable, is_unaligned, sustained
from shardwise.sharding.layout import Floats

_NO_MATRICES = ("aten.mul.Tensor", "shardwise.expert_linear.default")


def operands(op: Operator) -> tuple[int, int] | None:
    """Returns the positions of A and B; None for what is no product, as grouped convolutions."""
    if op.kind.startswith("aten.conv") and int(op.attributes.get("groups") or 1) > 1:
        return None
    return None if op.kind in _NO_MATRICES else FACTORS.get(op.kind)


@dataclass(frozen=True)
class Product:
    """A product of an operator under each of n assignments: arrays (n,).

    `table` has the times of such products on the device, in the dtype that they are computed in.
    `flops` are those of the product itself, `left`, `right` and `result` the elements of A, B and
    C, `item_bytes` those of one element.
    """

    table: ProductTable
    flops: Floats
    left: Floats
    right: Floats
    result: Floats
    item_bytes: float
    is_window: bool

    def times(self, device: Device, dtype: str, gradients: tuple[bool, ...] | None) -> Floats:
        """Returns the seconds of the product, or of the gradients of A and B that are needed."""
        table, half = self.table, self.flops / 2.0
        k, m = half / self.result, half / self.right
        batch = np.ones_like(m) if self.is_window else np.maximum(self.left / (m * k), 1.0)
        n = half / (m * k * batch)
        shapes = [(m * batch, n, k)]
        if gradients is not None:
            both = [(m * batch, k, n), (k * batch, n, m)]
            shapes = [shape for shape, needed in zip(both, gradients, strict=True) if needed]
        elements = self.left + self.right + self.result
        moved_s = elements * self.item_bytes / device.memory_bandwidth_bytes_per_s
        roofline = np.maximum(self.flops / device.peak(dtype), moved_s)
        clock = device.sustained_clock
        total = sum(
            (roofline / sustained(table.of(*shape), clock) for shape in shapes),
            np.zeros_like(roofline),
        )
        if table.unaligned == 1.0 or self.is_window:
            return total
        slow = len(shapes) * self.flops / (device.peak(dtype) * table.unaligned)
        unaligned = is_unaligned(n, k, self.item_bytes)
        return np.where(unaligned, np.maximum(total, slow), total)
