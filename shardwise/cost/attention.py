"""Attention as one operator: its sizes on a device, and its time by measured kernels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwise.hardware.attention import BACKWARD, AttentionTable
from shardwise.hardware.device import Device
from shardwise.hardware.products import sustained
from shardwise.sharding.layout import Floats

KINDS = frozenset(
    {
        "aten.scaled_dot_product_attention.default",
        "aten._scaled_dot_product_flash_attention.default",
        "aten._scaled_dot_product_efficient_attention.default",
        "aten._scaled_dot_product_cudnn_attention.default",
        "shardwise.sink_attention.default",
    }
)
"""Operators that keep no scores (FlashAttention)."""


@dataclass(frozen=True)
class Attention:
    """Attention of queries (batch, heads, length, head size) under each of n assignments.

    `table` has its rates on the device in some dtype. `heads` are those of all sequences on a
    device, `lengths` its queries of each, arrays (n,).
    """

    table: AttentionTable

    heads: Floats
    lengths: Floats

    def times(self, flops: Floats, device: Device, dtype: str, *, backward: bool) -> Floats:
        """Returns the seconds of `flops` (n,) operations, those that the mask leaves."""
        utilisation = self.table.of(np.maximum(self.heads, 1.0), np.maximum(self.lengths, 1.0))
        if backward:
            utilisation = utilisation * BACKWARD
        return flops / (device.peak(dtype) * sustained(utilisation, device.sustained_clock))
