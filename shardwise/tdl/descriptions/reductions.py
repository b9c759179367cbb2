"""Reductions over given dimensions, and operators that need one dimension whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shardwise.tdl.language import Max, Min, Opaque, Prod, Sum, TensorHandle
from shardwise.tdl.registry import Call, op, pointwise


def _per_input(call: Call) -> tuple[float, float]:
    elements = 1.0
    for extent in next(iter(call.shapes.values())):
        elements *= extent
    return elements, elements


def _dims(dim: Any, rank: int) -> list[int]:
    if dim is None or dim == []:
        return list(range(rank))
    return sorted(d % rank for d in ([dim] if isinstance(dim, int) else dim))


def _over(
    reducer: Callable[..., Any], tensor: TensorHandle, dim: Any, keepdim: bool
) -> Callable[..., Any]:
    dims = _dims(dim, tensor.rank)

    def output(*i: Any) -> Any:
        kept = list(i)

        def element(*j: Any) -> Any:
            inner, outer = iter(j), iter(kept)
            places = []
            for d in range(tensor.rank):
                if d in dims:
                    places.append(next(inner))
                    if keepdim:
                        next(outer)
                else:
                    places.append(next(outer))
            return tensor[tuple(places)]

        return reducer(element, [tensor.shape[d] for d in dims])

    return output


@op(
    "aten.sum.dim_IntList",
    "aten.sum.default",
    "aten.mean.dim",
    "aten.mean.default",
    category="light",
    saves=(),
    flops=_per_input,
)
def sum_(self: TensorHandle, *, dim: Any = None, keepdim: bool = False) -> Callable[..., Any]:
    """Sum, or mean: a partial sum divided by the constant count."""
    return _over(Sum, self, dim, keepdim)


@op("aten.amax.default", category="light", saves=("self", "output"), flops=_per_input)
def amax(self: TensorHandle, *, dim: Any = None, keepdim: bool = False) -> Callable[..., Any]:
    """Maximum."""
    return _over(Max, self, dim, keepdim)


@op("aten.amin.default", category="light", saves=("self", "output"), flops=_per_input)
def amin(self: TensorHandle, *, dim: Any = None, keepdim: bool = False) -> Callable[..., Any]:
    """Minimum."""
    return _over(Min, self, dim, keepdim)


@op("aten.prod.default", "aten.prod.dim_int", category="light", flops=_per_input)
def prod(self: TensorHandle, *, dim: Any = None, keepdim: bool = False) -> Callable[..., Any]:
    """Product."""
    return _over(Prod, self, dim, keepdim)


@op(
    "aten.cumsum.default",
    "aten.cumprod.default",
    category="light",
    saves=(),
    flops=pointwise(1.0),
)
def cumsum(self: TensorHandle, *, dim: int) -> Callable[..., Any]:
    """Each element needs all before it: the dimension is needed whole."""
    at = dim % self.rank
    scan = Opaque()
    return lambda *i: scan(self[tuple(slice(None) if d == at else x for d, x in enumerate(i))])


@op("aten.argmax.default", category="light", saves=(), flops=_per_input)
def argmax(
    self: TensorHandle, *, dim: int | None = None, keepdim: bool = False
) -> Callable[..., Any]:
    """The winning index needs the whole dimension."""
    dims = _dims(dim, self.rank)
    best = Opaque()

    def output(*i: Any) -> Any:
        outer = iter(i)
        places: list[Any] = []
        for d in range(self.rank):
            if d in dims:
                places.append(slice(None))
                if keepdim:
                    next(outer)
            else:
                places.append(next(outer))
        return best(self[tuple(places)])

    return output
