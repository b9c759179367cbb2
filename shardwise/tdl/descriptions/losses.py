"""Losses: point-wise terms, or terms of whole rows, that are summed to one number.

A mean is a sum of shares, each divided by the whole count. Where the count depends on values (the
weights of the classes of the targets), it is a statistic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from shardwise.tdl.describe import Call, op
from shardwise.tdl.descriptions.movement import all_of, common_shape, first_dims, per_input
from shardwise.tdl.language import NotCovered, Opaque, Sum, TensorHandle, apply, named

MEAN = 1
MEAN_OR_SUM = (1, 2)


def _six_per_input(call: Call) -> tuple[float, float]:
    work = 6.0 * per_input(call)[0]
    return work, work


def _reduced(row: Callable[..., Any], extents: Sequence[int], reduction: int) -> Callable[..., Any]:
    """Σ over all rows, or one value per row."""
    if reduction in MEAN_OR_SUM:
        return lambda: Sum(row, extents)
    return lambda *i: row(*i)


@op(
    "aten.cross_entropy_loss.default",
    category="heavy",
    saves=("self", "target", "weight"),
    flops=_six_per_input,
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
    if self.rank == 1:
        raise NotCovered("cross entropy of one sample without a batch")
    classes = self.shape[1]
    probabilities = target.rank == self.rank
    extents = (self.shape[0], *self.shape[2:])

    def row(b: Any, *s: Any) -> Any:
        def logit(*v: Any) -> Any:
            scale = [weight[v]] if weight is not None else []
            wanted = [target[(b, *v, *s)]] if probabilities else []
            return apply(self[(b, *v, *s)], *wanted, *scale)

        # Maximum, sum of exponentials and the target's logit are statistics over the classes.
        parts = [Sum(named(logit, "class"), (classes,)) for _ in range(3)]
        return apply(*parts, *([] if probabilities else [target[(b, *s)]]))

    if weight is not None and reduction == MEAN and not probabilities:
        return lambda: apply(Sum(row, extents), Sum(lambda *i: target[i], target.shape))
    return _reduced(row, extents, reduction)


@op(
    *(f"aten.{name}.default" for name in ("mse_loss", "smooth_l1_loss", "huber_loss", "kl_div")),
    *(f"aten.{name}.default" for name in ("soft_margin_loss", "hinge_embedding_loss")),
    category="light",
    saves=("self", "target"),
    flops=_six_per_input,
)
def pointwise_loss(
    self: TensorHandle, target: TensorHandle, *, reduction: int = 1
) -> Callable[..., Any]:
    """loss = Σ_i f(x[i], y[i])"""
    return _reduced(
        lambda *i: apply(self.at(i), target.at(i)), common_shape(self, target), reduction
    )


@op(
    "aten.poisson_nll_loss.default",
    category="light",
    saves=("input", "target"),
    flops=_six_per_input,
)
def poisson_nll_loss(
    input: TensorHandle, target: TensorHandle, *, reduction: int = 1
) -> Callable[..., Any]:
    """loss = Σ_i f(x[i], y[i])"""
    return pointwise_loss(input, target, reduction=reduction)


@op(
    "aten.binary_cross_entropy.default",
    "aten.binary_cross_entropy_with_logits.default",
    category="light",
    saves=("self", "target", "weight", "pos_weight"),
    flops=_six_per_input,
)
def binary_cross_entropy(
    self: TensorHandle,
    target: TensorHandle,
    weight: TensorHandle | None = None,
    pos_weight: TensorHandle | None = None,
    *,
    reduction: int = 1,
) -> Callable[..., Any]:
    """loss = Σ_i f(x[i], y[i]) w[i]"""
    scales = [t for t in (weight, pos_weight) if t is not None]

    def term(*i: Any) -> Any:
        return apply(self[i], target.at(i), *(t.at(i) for t in scales))

    return _reduced(term, self.shape, reduction)


@op(
    "aten.l1_loss.default",
    category="light",
    saves=("self",),
    flops=_six_per_input,
    note="its input is counted in place of the kept difference",
)
def l1_loss(self: TensorHandle, target: TensorHandle, *, reduction: int = 1) -> Callable[..., Any]:
    """loss = Σ_i |x[i] - y[i]|"""
    return pointwise_loss(self, target, reduction=reduction)


@op("aten.margin_ranking_loss.default", category="light", saves=("*",))
def margin_ranking_loss(
    input1: TensorHandle, input2: TensorHandle, target: TensorHandle, *, reduction: int = 1
) -> Callable[..., Any]:
    """loss = Σ_i f(a[i], b[i], y[i])"""
    tensors = (input1, input2, target)
    return _reduced(
        lambda *i: apply(*(t.at(i) for t in tensors)), common_shape(*tensors), reduction
    )


def _row_loss(
    tensors: Sequence[TensorHandle], per_row: Sequence[TensorHandle], reduction: int
) -> Callable[..., Any]:
    """Terms from sums over the last dimension of several tensors."""
    shape = common_shape(*tensors)

    def row(*i: Any) -> Any:
        def both(*e: Any) -> Any:
            return apply(*(t.at((*i, *e)) for t in tensors))

        return apply(Sum(named(both, "e"), shape[-1:]), *(t.at(i) for t in per_row))

    return _reduced(row, shape[:-1], reduction)


@op("aten.cosine_embedding_loss.default", category="light", saves=("*",))
def cosine_embedding_loss(
    input1: TensorHandle, input2: TensorHandle, target: TensorHandle, *, reduction: int = 1
) -> Callable[..., Any]:
    """loss = Σ_b f(Σ_e a[b, e] c[b, e], Σ_e a², Σ_e c², y[b])"""
    return _row_loss((input1, input2), (target,), reduction)


@op("aten.triplet_margin_loss.default", category="light", saves=("positive", "negative"))
def triplet_margin_loss(
    anchor: TensorHandle, positive: TensorHandle, negative: TensorHandle, *, reduction: int = 1
) -> Callable[..., Any]:
    """loss = Σ_b f(Σ_e |a[b, e] - p[b, e]|², Σ_e |a[b, e] - n[b, e]|²)"""
    return _row_loss((anchor, positive, negative), (), reduction)


@op(
    "aten.multi_margin_loss.default",
    "aten.multilabel_margin_loss.default",
    category="light",
    saves=("self", "target", "weight"),
    flops=_six_per_input,
)
def multi_margin_loss(
    self: TensorHandle,
    target: TensorHandle,
    weight: TensorHandle | None = None,
    *,
    reduction: int = 1,
) -> Callable[..., Any]:
    """loss = Σ_b f(x[b, :], target[b])"""
    if self.rank != 2:
        raise NotCovered("a margin loss of one sample without a batch")
    term = Opaque()
    scale = [weight[:]] if weight is not None else []

    def row(b: Any) -> Any:
        return term(self[b, :], first_dims(target, (b,)), *scale)

    return _reduced(row, self.shape[:1], reduction)


def _nll_row(self: TensorHandle, target: TensorHandle, weight: TensorHandle | None) -> Any:
    def row(b: Any, *s: Any) -> Any:
        def pick(*v: Any) -> Any:
            return apply(self[(b, *v, *s)], *([weight[v]] if weight is not None else []))

        return apply(Sum(named(pick, "class"), self.shape[1:2]), target[(b, *s)])

    return row


@op(
    "aten.nll_loss.default",
    "aten.nll_loss_nd.default",
    "aten.nll_loss2d.default",
    category="light",
    saves=("self", "target", "weight"),
    flops=_six_per_input,
)
def nll_loss(
    self: TensorHandle,
    target: TensorHandle,
    weight: TensorHandle | None = None,
    *,
    reduction: int = 1,
) -> Callable[..., Any]:
    """loss = -Σ_b logp[b, target[b]]"""
    if self.rank < 2:
        raise NotCovered("nll_loss of one sample without a batch")
    extents = (self.shape[0], *self.shape[2:])
    row = _nll_row(self, target, weight)
    if weight is not None and reduction == MEAN:
        return lambda: apply(Sum(row, extents), Sum(lambda *i: target[i], target.shape))
    return _reduced(row, extents, reduction)


@op(
    "aten.nll_loss_forward.default",
    "aten.nll_loss2d_forward.default",
    category="light",
    saves=("self", "target", "weight", "output.1"),
    flops=_six_per_input,
)
def nll_loss_forward(
    self: TensorHandle,
    target: TensorHandle,
    weight: TensorHandle | None = None,
    *,
    reduction: int = 1,
) -> list[Callable[..., Any]]:
    """loss, Σ_b weight[target[b]]: statistics"""
    if self.rank < 2:
        raise NotCovered("nll_loss of one sample without a batch")
    extents = (self.shape[0], *self.shape[2:])
    row = _nll_row(self, target, weight)

    def total() -> Any:
        return apply(Sum(lambda *i: target[i], extents))

    if reduction in MEAN_OR_SUM:
        return [lambda: apply(Sum(row, extents), Sum(lambda *i: target[i], extents)), total]
    return [lambda *i: row(*i), total]


@op(
    "aten.ctc_loss.IntList",
    "aten.ctc_loss.Tensor",
    saves=("log_probs", "targets"),
    flops=lambda call: (8.0 * prod(call.shapes["log_probs"]),) * 2,
    note="scores of every alignment, as large as the log-probabilities, are not counted",
)
def ctc_loss(
    log_probs: TensorHandle,
    targets: TensorHandle,
    input_lengths: TensorHandle | None = None,
    target_lengths: TensorHandle | None = None,
    *,
    reduction: int = 1,
) -> Callable[..., Any]:
    """loss = Σ_b f(logp[:, b, :], target[b, :])"""
    if log_probs.rank != 3:
        raise NotCovered("a CTC loss of one sequence without a batch")
    align = Opaque()
    lengths = [t for t in (input_lengths, target_lengths) if t is not None]

    def row(b: Any) -> Any:
        wanted = targets[b, :] if targets.rank == 2 else all_of(targets)
        return align(log_probs[:, b, :], wanted, *(t[b] for t in lengths))

    return _reduced(row, log_probs.shape[1:2], reduction)
