"""Devices: what one computes and moves in a second, and the roofline time of a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from shardwise.hardware.attention import AttentionTable, nearest
from shardwise.hardware.grid import Floats
from shardwise.hardware.products import ProductTable

HALVES = ("bfloat16", "float16")
"""Dtypes of which products take the same time."""

BLOCK_SCALED = ("mxfp8", "nvfp4")
"""Units of products that apply scales of blocks. Where none of theirs were measured they reach the
share of their peak that products of as many numbers in 8 bits do."""


@dataclass(frozen=True)
class Device:
    """One kind of device; `count` of them in a node.

    `peak_flops_per_s` by dtype, dense; of `BLOCK_SCALED` too. `compute_efficiency` and
    `memory_efficiency` are the stated fractions of the peaks that large kernels reach;
    `kernel_latency_s` is what any kernel takes at the least. `compute_efficiency_by_dtype` replaces
    `compute_efficiency` for the dtypes it names: vector units come nearer to their peak than matrix
    units.
    `products` are measured matrix products by dtype, `sustained_clock` the share of a kernel
    benchmark's clocks that training sustains in large ones (`hardware/products.py`). `attention` is
    measured attention by dtype and size of a head (`hardware/attention.py`).
    `fast_convolution_saving` is, by dtype, how many times fewer operations a 3 × 3 convolution of
    stride 1 takes with the library's fast algorithm (Lavin & Gray 2016); 1 where it names none.
    `power_limit_w` is the power that the figures are at, where it was limited
    (`hardware/power.py`); None for that of the GPU.
    """

    kind: str
    count: int
    memory_bytes: float
    peak_flops_per_s: Mapping[str, float]
    memory_bandwidth_bytes_per_s: float
    compute_efficiency: float
    memory_efficiency: float
    kernel_latency_s: float
    compute_efficiency_by_dtype: Mapping[str, float] = field(default_factory=dict)
    fast_convolution_saving: Mapping[str, float] = field(default_factory=dict)
    products: tuple[ProductTable, ...] = ()
    sustained_clock: float = 1.0
    attention: tuple[AttentionTable, ...] = ()
    power_limit_w: float | None = None

    @property
    def has_kernels(self) -> bool:
        """Whether kernels of the device were measured, whatever their dtype."""
        return bool(self.products or self.attention)

    def product_table(self, dtype: str) -> ProductTable | None:
        """Returns the measured products of a dtype; the two of 16 bits run alike."""
        tables = {table.dtype: table for table in self.products}
        return next((tables[name] for name in _alike(dtype) if name in tables), None)

    def attention_table(self, dtype: str, head_size: float) -> AttentionTable | None:
        """Returns the measured attention of a dtype, of the size of a head that is nearest in the
        logarithm; the dtypes of 16 bits run alike."""
        for name in _alike(dtype):
            tables = [table for table in self.attention if table.dtype == name]
            if tables:
                return nearest(tables, head_size)
        return None

    def peak(self, dtype: str) -> float:
        """Returns flops per second for operands of this dtype.

        What has no entry runs as float32.
        """
        return self.peak_flops_per_s.get(dtype, self.peak_flops_per_s["float32"])

    def efficiency(self, dtype: str) -> float:
        """Returns the fraction of `peak(dtype)` that large kernels reach."""
        known = dtype if dtype in self.peak_flops_per_s else "float32"
        return self.compute_efficiency_by_dtype.get(known, self.compute_efficiency)

    def roofline_times(self, flops: Floats, moved_bytes: Floats, dtype: str) -> Floats:
        """Returns seconds of a kernel: the slower of computing and moving, not below the latency.

        max(flops / (peak · efficiency), bytes / (bandwidth · efficiency)) + latency
        (Williams et al. 2009). Arrays of equal shape.
        """
        compute_s = flops / (self.peak(dtype) * self.efficiency(dtype))
        memory_s = moved_bytes / (self.memory_bandwidth_bytes_per_s * self.memory_efficiency)
        return np.maximum(compute_s, memory_s) + self.kernel_latency_s


def _alike(dtype: str) -> tuple[str, ...]:
    """Returns the dtypes whose measured kernels stand for those of a dtype, itself first."""
    if dtype in BLOCK_SCALED:
        return (dtype, "float8_e4m3fn")
    return (dtype, *HALVES) if dtype in HALVES else (dtype,)
