"""Operators without inputs that are read: every device makes what it needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shardwise.tdl.describe import no_flops, op
from shardwise.tdl.language import Constant, Opaque, TensorHandle


@op(
    *(f"aten.arange.{form}" for form in ("default", "start", "start_step")),
    *(f"aten.{name}.default" for name in ("range", "full", "ones", "zeros", "scalar_tensor")),
    *(f"aten.{name}.default" for name in ("rand", "randn", "eye", "linspace", "logspace")),
    *(f"aten.{name}.default" for name in ("empty_strided", "empty_permuted", "randint")),
    *(f"aten.{name}.default" for name in ("tril_indices", "triu_indices")),
    *(f"aten.{name}_window.default" for name in ("hann", "hamming", "blackman", "bartlett")),
    "aten.range.step",
    "aten.randint.low",
    "aten.eye.m",
    "aten.hann_window.periodic",
    "aten.normal.float_float",
    "aten.fft_fftfreq.default",
    "aten.fft_rfftfreq.default",
    "aten.empty.memory_format",
    category="light",
    saves=(),
    flops=no_flops,
)
def filled() -> Callable[..., Any]:
    """y[i] is known from i."""
    return lambda *i: Constant(0.0)


@op("aten.tril.default", "aten.triu.default", category="elementwise", saves=(), flops=no_flops)
def triangle(self: TensorHandle) -> Callable[..., Any]:
    """y[i, j] = x[i, j] or zero, by i and j."""
    mask = Opaque()
    return lambda *i: mask(self[i])
