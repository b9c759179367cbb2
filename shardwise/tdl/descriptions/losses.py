"""Losses that reduce to one number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shardwise.tdl.language import NotCovered, Sum, TensorHandle, apply, named
from shardwise.tdl.registry import Call, op

MEAN_OR_SUM = (1, 2)


def _per_input(call: Call) -> tuple[float, float]:
    elements = 6.0
    for extent in call.shapes["self"]:
        elements *= extent
    return elements, elements


@op(
    "aten.cross_entropy_loss.default",
    category="heavy",
    saves=("self", "target"),
    flops=_per_input,
    note="keeps as much as its logits: their log-probabilities",
)
def cross_entropy_loss(
    self: TensorHandle,
    target: TensorHandle,
    weight: TensorHandle | None = None,
    *,
    reduction: int = 1,
) -> Callable[..., Any]:
    """loss = Σ_{b,s} (log Σ_v exp z[b, v, s] - z[b, target[b, s], s])"""
    if target.rank != self.rank - 1 and self.rank > 1:
        raise NotCovered("cross entropy with class probabilities as target")
    classes = self.shape[1] if self.rank > 1 else self.shape[0]

    def row(b: Any, *s: Any) -> Any:
        def logit(*v: Any) -> Any:
            return self[(b, *v, *s)]

        # Maximum, sum of exponentials and the target's logit are statistics over the classes.
        parts = [Sum(named(logit, "class"), (classes,)) for _ in range(3)]
        return apply(*parts, target[(b, *s)])

    if self.rank == 1:
        raise NotCovered("cross entropy of one sample without a batch")
    if reduction in MEAN_OR_SUM:
        extents = (self.shape[0], *self.shape[2:])
        return lambda: Sum(row, extents)
    return lambda *i: row(*i)


@op(
    "aten.mse_loss.default",
    "aten.smooth_l1_loss.default",
    "aten.huber_loss.default",
    "aten.binary_cross_entropy_with_logits.default",
    category="light",
    saves=("self", "target"),
    flops=_per_input,
)
def pointwise_loss(
    self: TensorHandle, target: TensorHandle, *, reduction: int = 1
) -> Callable[..., Any]:
    """loss = Σ_i f(x[i], y[i])"""
    if reduction in MEAN_OR_SUM:
        return lambda: Sum(lambda *i: apply(self[i], target.at(i)), self.shape)
    return lambda *i: apply(self[i], target.at(i))


@op(
    "aten.l1_loss.default",
    category="light",
    saves=("self",),
    flops=_per_input,
    note="its input stands for the difference that is kept",
)
def l1_loss(self: TensorHandle, target: TensorHandle, *, reduction: int = 1) -> Callable[..., Any]:
    """loss = Σ_i |x[i] - y[i]|"""
    return pointwise_loss(self, target, reduction=reduction)


@op(
    "aten.nll_loss.default",
    "aten.nll_loss_nd.default",
    category="light",
    saves=("self", "target"),
    flops=_per_input,
)
def nll_loss(
    self: TensorHandle,
    target: TensorHandle,
    weight: TensorHandle | None = None,
    *,
    reduction: int = 1,
) -> Callable[..., Any]:
    """loss = -Σ_b logp[b, target[b]]"""
    if self.rank < 2 or reduction not in MEAN_OR_SUM:
        raise NotCovered("nll_loss without a batch or without a reduction")
    extents = (self.shape[0], *self.shape[2:])

    def row(b: Any, *s: Any) -> Any:
        return apply(Sum(lambda v: self[(b, v, *s)], (self.shape[1],)), target[(b, *s)])

    return lambda: Sum(row, extents)
