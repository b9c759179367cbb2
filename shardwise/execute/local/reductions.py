"""Reductions whose shares are not terms of a sum: extremes, products, variances, norms.

What a plan calls PARTIAL is summed. An extreme or a product is therefore reduced here, over as many
numbers as the result has, and put on the first rank, with zeros on the others.
"""

from __future__ import annotations

from typing import Any, Literal

import torch

from shardwise.execute.local.calling import Run, bind
from shardwise.execute.local.extremes import extreme
from shardwise.execute.local.plain import plain
from shardwise.execute.local.registry import form
from shardwise.execute.local.share import Share
from shardwise.tdl.descriptions.arguments import dims_of


@form("amax.default", "max.default", "any.default", "any.dim", "any.dims")
def amax(share: Share) -> Run:
    """Takes the largest element over all shares."""
    return _extreme(share, "max")


@form("amin.default", "min.default", "all.default", "all.dim", "all.dims")
def amin(share: Share) -> Run:
    """Takes the smallest element over all shares."""
    return _extreme(share, "min")


def _extreme(share: Share, which: Literal["max", "min"]) -> Run:
    if not share.reductions:
        return plain(share)
    axes, exchange = share.axes(*share.reductions), share.exchange
    reduce = getattr(exchange, which)
    kind = share.op.kind
    logical = kind.startswith(("aten.any", "aten.all"))
    rank = len(share.inputs[0].shape)
    dims = dims_of(share.attributes.get("dim"), rank)
    keepdim = share.attributes.get("keepdim", False)
    floating = share.inputs[0].differentiable

    def run(x: Any) -> list[Any]:
        x = x != 0 if logical else x
        local = x.int() if logical else x
        own = extreme(local.detach(), dims, which)
        best = reduce(own, axes)
        if not floating or logical:
            y = best.to(torch.bool) if logical else best
        else:
            # If several elements are largest, each gets an equal part of the gradient, as in torch.
            hit = (x == best).to(x.dtype)
            count = exchange.sum(hit.sum(dims, keepdim=True), axes).detach()
            y = _Value.apply((x * (hit / count)).sum(dims, keepdim=True), best)
        y = y if keepdim else y.squeeze(dims)
        return [_spread(y, exchange, axes)]

    return run


class _Value(torch.autograd.Function):  # type: ignore[misc]
    """The value of `value` with the gradient of `x`."""

    @staticmethod
    def forward(ctx: Any, x: Any, value: Any) -> Any:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad, None


class _FirstValue(torch.autograd.Function):  # type: ignore[misc]
    """y on the first rank and zeros on the others; every rank gets the gradient."""

    @staticmethod
    def forward(ctx: Any, y: Any, is_first: bool) -> Any:
        return y.view_as(y) if is_first else torch.zeros_like(y)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad, None


def _spread(y: Any, exchange: Any, axes: tuple[int, ...]) -> Any:
    """Returns a term of a PARTIAL result; its gradient is needed whole and used by every rank."""
    return _FirstValue.apply(y, exchange.mesh.index(axes) == 0)


@form("prod.default", "prod.dim_int")
def product(share: Share) -> Run:
    """Multiplies the shares' products, gathered: one number per share."""
    if not share.reductions:
        return plain(share)
    axes, exchange = share.axes(*share.reductions), share.exchange
    run = bind(share.target, share.arguments, share.attributes, 1)

    def whole(x: Any) -> list[Any]:
        return [exchange.first(exchange.each(run(x)[0], axes).prod(0), axes)]

    return whole


@form(
    *(f"{name}.{form}" for name in ("var", "std") for form in ("dim", "correction", "default")),
    *(
        f"{name}_mean.{form}"
        for name in ("var", "std")
        for form in ("dim", "correction", "default")
    ),
)
def variance(share: Share) -> Run:
    """Computes Σ (x - mean)² / (n - correction), the mean first; both whole on every rank."""
    if not share.statistics:
        return plain(share)
    axes, exchange = share.axes(*share.statistics), share.exchange
    shape = share.inputs[0].shape
    dims = dims_of(share.attributes.get("dim"), len(shape))
    count = 1
    for d in dims:
        count *= shape[d]
    correction = share.attributes.get("correction")
    if correction is None:
        correction = 1.0 if share.attributes.get("unbiased", True) else 0.0
    keepdim = share.attributes.get("keepdim", False)
    root, both = share.op.kind.startswith("aten.std"), "_mean" in share.op.kind

    def run(x: Any) -> list[Any]:
        mean = exchange.total(x.sum(dims, keepdim=True), axes) / count
        # The mean of deviations is zero: the variance has no gradient through the mean.
        square = (x - mean.detach()).square().sum(dims, keepdim=True)
        y = exchange.total(square, axes) / max(count - correction, 0.0)
        y = y.sqrt() if root else y
        results = [y, mean] if both else [y]
        return results if keepdim else [r.squeeze(dims) for r in results]

    return run


@form("nanmean.default")
def nanmean(share: Share) -> Run:
    """Divides the sum by the count of numbers, both whole on every rank."""
    if not share.statistics:
        return plain(share)
    axes, exchange = share.axes(*share.statistics), share.exchange
    dims = dims_of(share.attributes.get("dim"), len(share.inputs[0].shape))
    keepdim = share.attributes["keepdim"]

    def run(x: Any) -> list[Any]:
        count = exchange.total((~x.isnan()).to(x.dtype).sum(dims, keepdim=keepdim), axes)
        return [exchange.total(x.nansum(dims, keepdim=keepdim), axes) / count]

    return run


@form(
    *("linalg_vector_norm.default", "norm.Scalar", "norm.ScalarOpt_dim", "norm.ScalarOpt_dtype"),
    *("norm.ScalarOpt_dim_dtype", "frobenius_norm.dim", "linalg_norm.default"),
)
def vector_norm(share: Share) -> Run:
    """Computes (Σ |x|^p)^(1/p), whole on every rank."""
    if not share.statistics:
        return plain(share)
    order = share.attributes.get("ord", share.attributes.get("p", 2))
    if order in ("fro", "nuc"):
        order = 2.0 if order == "fro" else float("inf")
    order = 2.0 if order is None else float(order)
    given = share.attributes.get("dim")
    if share.op.kind == "aten.linalg_norm.default" and share.attributes.get("ord") is not None:
        several = given is None or (isinstance(given, list) and len(given) > 1)
        if several and len(share.inputs[0].shape) > 1:
            share.refuse(share.statistics, "a norm of matrices has no exact form")
    if order in (0.0, float("inf"), float("-inf")):
        share.refuse(share.statistics, f"a norm of order {order} has no exact form")
    axes, exchange = share.axes(*share.statistics), share.exchange
    dims = dims_of(share.attributes.get("dim"), len(share.inputs[0].shape))
    keepdim, dtype = share.attributes.get("keepdim", False), share.attributes.get("dtype")

    def run(x: Any) -> list[Any]:
        x = x if dtype is None else x.to(dtype)
        local = torch.linalg.vector_norm(x, order, dims, keepdim=keepdim)
        total = exchange.total(local.pow(order), axes)
        # torch defines no gradient for the root of zero; the true one is infinite.
        zero = total == 0
        return [torch.where(zero, 0.0, torch.where(zero, 1.0, total).pow(1 / order))]

    return run


@form("cosine_similarity.default")
def cosine_similarity(share: Share) -> Run:
    """Computes three sums over all shares."""
    if not share.statistics:
        return plain(share)
    axes, exchange = share.axes(*share.statistics), share.exchange
    dim, eps = share.attributes["dim"], share.attributes["eps"]
    rank = len(share.outputs[0].shape) + 1
    dim = dim % rank - rank

    def run(a: Any, b: Any) -> list[Any]:
        def over(x: Any) -> Any:
            return exchange.total(x.sum(dim), axes)

        lengths = (over(a * a).sqrt().clamp_min(eps), over(b * b).sqrt().clamp_min(eps))
        return [over(a * b) / (lengths[0] * lengths[1])]

    return run


@form("pairwise_distance.default", "dist.default")
def distance(share: Share) -> Run:
    """Computes (Σ |a - b|^p)^(1/p) over shares; adds torch's epsilon where torch does."""
    if not share.statistics:
        return plain(share)
    order = float(share.attributes["p"])
    if order in (0.0, float("inf"), float("-inf")):
        share.refuse(share.statistics, f"a distance of order {order} has no exact form")
    axes, exchange = share.axes(*share.statistics), share.exchange
    pairwise = share.op.kind == "aten.pairwise_distance.default"
    eps = share.attributes["eps"] if pairwise else 0.0
    keepdim = share.attributes.get("keepdim", False)

    def run(a: Any, b: Any) -> list[Any]:
        power = (a - b + eps).abs().pow(order)
        local = power.sum(-1, keepdim=keepdim) if pairwise else power.sum()
        return [exchange.total(local, axes).pow(1 / order)]

    return run
