"""Mixture of experts: products of groups of rows, counts of what goes where."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from shardwise.tdl.describe import Call, op
from shardwise.tdl.descriptions.movement import all_of
from shardwise.tdl.language import NotCovered, Opaque, Sum, TensorHandle, apply, named


def _grouped_flops(call: Call) -> tuple[float, float]:
    """Every row meets the matrix of its own group."""
    a, b = (call.shapes[n] for n in ("self", "mat2"))
    rows = a[-2] * (a[0] if len(a) == 3 else 1)
    forward = 2.0 * rows * a[-1] * b[-1]
    return forward, forward * sum(n in call.differentiable for n in ("self", "mat2"))


@op("aten._grouped_mm.default", saves=("self", "mat2", "offs"), flops=_grouped_flops)
def grouped_mm(
    self: TensorHandle,
    mat2: TensorHandle,
    offs: TensorHandle | None = None,
    bias: TensorHandle | None = None,
) -> Callable[..., Any]:
    """y[m, n] = Σ_{g, k} [m is in group g] a[m, k] b[g, k, n]: split experts give partial rows"""
    if bias is not None:
        raise NotCovered("a grouped product with a bias")
    ends = [] if offs is None else [all_of(offs)]
    if (self.rank, mat2.rank) == (2, 3):
        return lambda row, out: Sum(
            named(lambda g, k: apply(*ends) * self[row, k] * mat2[g, k, out], "expert", "in"),
            mat2.shape[:2],
        )
    if (self.rank, mat2.rank) == (3, 3):
        return lambda g, row, out: Sum(lambda k: self[g, row, k] * mat2[g, k, out])
    if (self.rank, mat2.rank) == (2, 2):
        return lambda g, row, out: Sum(
            named(lambda *k: apply(*ends) * self[(row, *k)] * mat2[(*k, out)], "in"),
            mat2.shape[:1],
        )
    return lambda row, out: Sum(
        named(lambda g, k: apply(*ends) * self[g, row, k] * mat2[k, out], "expert", "in"),
        (self.shape[0], self.shape[2]),
    )


def _fallback_flops(call: Call) -> tuple[float, float]:
    """Returns the flops of the grouped product, with other names of its inputs."""
    shapes = {"self": call.shapes["input"], "mat2": call.shapes["weight"]}
    names = {"input": "self", "weight": "mat2"}
    differentiable = frozenset(names[n] for n in call.differentiable if n in names)
    return _grouped_flops(replace(call, shapes=shapes, differentiable=differentiable))


@op(
    "transformers::grouped_mm_fallback",
    saves=("input", "weight", "offs"),
    flops=_fallback_flops,
)
def grouped_mm_fallback(
    input: TensorHandle, weight: TensorHandle, offs: TensorHandle
) -> Callable[..., Any]:
    """As _grouped_mm of rows by experts: what transformers exports without a GPU"""
    return grouped_mm(input, weight, offs)


@op("aten.histc.default", category="light", saves=())
def histc(self: TensorHandle, *, min: float = 0, max: float = 0) -> Callable[..., Any]:
    """y[bin] = Σ_i [x[i] is in the bin]; without limits they are those of the data"""
    if min == max:
        count = Opaque()
        return lambda bin: count(all_of(self))
    return lambda bin: Sum(lambda *i: apply(self[i]), self.shape)
