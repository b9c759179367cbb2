"""Devices: what one computes and moves in a second, and the roofline time of a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Device:
    """One kind of device; `count` of them in a node.

    `peak_flops_per_s` by dtype, dense. `compute_efficiency` and `memory_efficiency` are the
    stated fractions of the peaks that large kernels reach; `kernel_latency_s` is what any
    kernel takes at the least. `compute_efficiency_by_dtype` replaces `compute_efficiency` for the
    dtypes it names: vector units come nearer to their peak than matrix units.
    `fast_convolution_saving` is, by dtype, how many times fewer operations a 3 × 3 convolution of
    stride 1 takes with the library's fast algorithm (Lavin & Gray 2016); 1 where it names none.
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
