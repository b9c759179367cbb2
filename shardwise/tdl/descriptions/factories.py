"""Operators without inputs: every device makes what it needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shardwise.tdl.language import Constant, Opaque, TensorHandle
from shardwise.tdl.registry import no_flops, op


@op(
    "aten.arange.default",
    "aten.arange.start",
    "aten.arange.start_step",
    "aten.full.default",
    "aten.ones.default",
    "aten.zeros.default",
    "aten.empty.memory_format",
    "aten.scalar_tensor.default",
    "aten.rand.default",
    "aten.randn.default",
    "aten.eye.default",
    "aten.linspace.default",
    category="light",
    saves=(),
    flops=no_flops,
)
def made() -> Callable[..., Any]:
    """y[i] is known from i."""
    return lambda *i: Constant(0.0)


@op("aten.tril.default", "aten.triu.default", category="elementwise", saves=(), flops=no_flops)
def triangle(self: TensorHandle) -> Callable[..., Any]:
    """y[i, j] = x[i, j] or zero, by i and j."""
    mask = Opaque()
    return lambda *i: mask(self[i])
