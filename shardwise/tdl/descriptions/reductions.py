"""Reductions over given dimensions, and operators that need one dimension whole."""

from __future__ import annotations

from collections.abc import Callable
from math import prod as product
from typing import Any

from shardwise.tdl.descriptions.arguments import dim_of, dims_of
from shardwise.tdl.language import Max, Min, Opaque, Prod, Sum, TensorHandle, apply
from shardwise.tdl.registry import Call, op, pointwise


def _per_input(call: Call) -> tuple[float, float]:
    elements = float(product(next(iter(call.shapes.values()))))
    return elements, elements


def _gather_back(call: Call) -> tuple[float, float]:
    """Comparisons forward; backward copies the winners' gradients only."""
    return _per_input(call)[0], 0.0


def _places(tensor: TensorHandle, dims: list[int], keepdim: bool, i: Any, reduced: Any) -> Any:
    """The indices of `tensor`: those of `dims` from `reduced`, the others from the output's."""
    inner, outer = iter(reduced), iter(i)
    places = []
    for d in range(tensor.rank):
        if d in dims:
            places.append(next(inner))
            if keepdim:
                next(outer)
        else:
            places.append(next(outer))
    return tuple(places)


def _over(
    reducer: Callable[..., Any], tensor: TensorHandle, dim: Any, keepdim: bool
) -> Callable[..., Any]:
    dims = dims_of(dim, tensor.rank)
    extents = [tensor.shape[d] for d in dims]
    return lambda *i: reducer(lambda *j: tensor[_places(tensor, dims, keepdim, i, j)], extents)


def _whole(tensor: TensorHandle, dim: Any, keepdim: bool) -> Callable[..., Any]:
    """An opaque function of whole dimensions that go away."""
    dims = dims_of(dim, tensor.rank)
    best = Opaque()
    all_of = [slice(None)] * len(dims)
    return lambda *i: best(tensor[_places(tensor, dims, keepdim, i, all_of)])


def _along(tensor: TensorHandle, dim: int) -> Callable[..., Any]:
    """An opaque function of a whole dimension that stays."""
    at = dim_of(dim, tensor.rank)
    scan = Opaque()
    return lambda *i: scan(tensor[tuple(slice(None) if d == at else x for d, x in enumerate(i))])


@op(
    "aten.sum.dim_IntList",
    "aten.sum.default",
    "aten.mean.dim",
    "aten.mean.default",
    category="light",
    saves=(),
    flops=_per_input,
    note="a mean is a sum of shares, each divided by the whole count",
)
def sum_(self: TensorHandle, *, dim: Any = None, keepdim: bool = False) -> Callable[..., Any]:
    """y[…] = Σ_j x[…, j]"""
    return _over(Sum, self, dim, keepdim)


@op(
    "aten.amax.default",
    "aten.max.default",
    category="light",
    saves=("self", "output"),
    flops=_per_input,
)
def amax(self: TensorHandle, *, dim: Any = None, keepdim: bool = False) -> Callable[..., Any]:
    """y[…] = max_j x[…, j]"""
    return _over(Max, self, dim, keepdim)


@op(
    "aten.amin.default",
    "aten.min.default",
    category="light",
    saves=("self", "output"),
    flops=_per_input,
)
def amin(self: TensorHandle, *, dim: Any = None, keepdim: bool = False) -> Callable[..., Any]:
    """y[…] = min_j x[…, j]"""
    return _over(Min, self, dim, keepdim)


@op(
    "aten.any.default", "aten.any.dim", "aten.any.dims", category="light", saves=(),
    flops=_gather_back,
)  # fmt: skip
def any_(self: TensorHandle, *, dim: Any = None, keepdim: bool = False) -> Callable[..., Any]:
    """y[…] = max_j [x[…, j]]"""
    return _over(Max, self, dim, keepdim)


@op(
    "aten.all.default", "aten.all.dim", "aten.all.dims", category="light", saves=(),
    flops=_gather_back,
)  # fmt: skip
def all_(self: TensorHandle, *, dim: Any = None, keepdim: bool = False) -> Callable[..., Any]:
    """y[…] = min_j [x[…, j]]"""
    return _over(Min, self, dim, keepdim)


@op(
    "aten.prod.default",
    "aten.prod.dim_int",
    category="light",
    saves=("self", "output"),
    flops=_per_input,
)
def prod(self: TensorHandle, *, dim: Any = None, keepdim: bool = False) -> Callable[..., Any]:
    """y[…] = Π_j x[…, j]"""
    return _over(Prod, self, dim, keepdim)


@op(
    "aten.var.dim",
    "aten.var.correction",
    "aten.var.default",
    category="light",
    saves=("self",),
    flops=_per_input,
)
def var(self: TensorHandle, *, dim: Any = None, keepdim: bool = False) -> Callable[..., Any]:
    """y[…] = f(Σ_j x[…, j], Σ_j x[…, j]²): two statistics"""
    first, second = _over(Sum, self, dim, keepdim), _over(Sum, self, dim, keepdim)
    return lambda *i: apply(first(*i), second(*i))


@op(
    "aten.std.dim",
    "aten.std.correction",
    "aten.std.default",
    category="light",
    saves=("self", "output"),
    flops=_per_input,
)
def std(self: TensorHandle, *, dim: Any = None, keepdim: bool = False) -> Callable[..., Any]:
    """y[…] = f(Σ_j x[…, j], Σ_j x[…, j]²): two statistics"""
    return var(self, dim=dim, keepdim=keepdim)


@op("aten.logsumexp.default", category="light", saves=("self", "output"), flops=_per_input)
def logsumexp(self: TensorHandle, *, dim: Any, keepdim: bool = False) -> Callable[..., Any]:
    """y[…] = log Σ_j exp x[…, j]: two statistics, the maximum and the sum"""
    largest, total = _over(Max, self, dim, keepdim), _over(Sum, self, dim, keepdim)
    return lambda *i: apply(largest(*i), total(*i))


@op(
    "aten.linalg_vector_norm.default",
    category="light",
    saves=("self", "output"),
    flops=_per_input,
)
def vector_norm(
    self: TensorHandle, *, dim: Any = None, keepdim: bool = False
) -> Callable[..., Any]:
    """y[…] = f(Σ_j |x[…, j]|^p): a statistic"""
    total = _over(Sum, self, dim, keepdim)
    return lambda *i: apply(total(*i))


@op("aten.cumsum.default", category="light", saves=(), flops=pointwise(1.0))
def cumsum(self: TensorHandle, *, dim: int) -> Callable[..., Any]:
    """y[…, j] = scan(x[…, :])[j]"""
    return _along(self, dim)


@op("aten.cumprod.default", category="light", saves=("self", "output"), flops=pointwise(1.0))
def cumprod(self: TensorHandle, *, dim: int) -> Callable[..., Any]:
    """y[…, j] = scan(x[…, :])[j]"""
    return _along(self, dim)


@op("aten.argmax.default", "aten.argmin.default", category="light", saves=(), flops=_gather_back)
def argmax(
    self: TensorHandle, *, dim: int | None = None, keepdim: bool = False
) -> Callable[..., Any]:
    """y[…] = argmax(x[…, :])"""
    return _whole(self, dim, keepdim)


@op("aten.max.dim", "aten.min.dim", category="light", saves=("output.1",), flops=_gather_back)
def max_with_index(
    self: TensorHandle, *, dim: int, keepdim: bool = False
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """value[…], index[…] = best(x[…, :])"""
    return _whole(self, dim, keepdim), _whole(self, dim, keepdim)


@op(
    "aten.topk.default",
    "aten.sort.default",
    "aten.sort.stable",
    category="light",
    saves=("output.1",),
    flops=_gather_back,
)
def topk(self: TensorHandle, *, dim: int = -1) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """values[…, k], indices[…, k] = best(x[…, :])[k]"""
    return _along(self, dim), _along(self, dim)
