"""Scans and orders along one dimension, which is needed whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shardwise.tdl.describe import no_flops, op, pointwise
from shardwise.tdl.descriptions.arguments import dim_of
from shardwise.tdl.descriptions.movement import all_of, along, gather_back, whole
from shardwise.tdl.language import Opaque, TensorHandle, apply


@op("aten.cumsum.default", category="light", saves=(), flops=pointwise(1.0))
def cumsum(self: TensorHandle, *, dim: int) -> Callable[..., Any]:
    """y[…, j] = scan(x[…, :])[j]"""
    return along(self, dim)


@op(
    "aten.cumprod.default",
    "aten.logcumsumexp.default",
    category="light",
    saves=("self", "output"),
    flops=pointwise(1.0),
)
def cumprod(self: TensorHandle, *, dim: int) -> Callable[..., Any]:
    """y[…, j] = scan(x[…, :])[j]"""
    return along(self, dim)


@op("aten.argmax.default", "aten.argmin.default", category="light", saves=(), flops=gather_back)
def argmax(
    self: TensorHandle, *, dim: int | None = None, keepdim: bool = False
) -> Callable[..., Any]:
    """y[…] = argmax(x[…, :])"""
    return whole(self, dim, keepdim)


@op(
    "aten.max.dim",
    "aten.min.dim",
    "aten.median.dim",
    "aten.nanmedian.dim",
    category="light",
    saves=("output.1",),
    flops=gather_back,
)
def max_with_index(
    self: TensorHandle, *, dim: int, keepdim: bool = False
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """value[…], index[…] = best(x[…, :])"""
    return whole(self, dim, keepdim), whole(self, dim, keepdim)


@op(
    "aten.cummax.default",
    "aten.cummin.default",
    category="light",
    saves=("self", "output.1"),
    flops=gather_back,
)
@op(
    "aten.topk.default",
    "aten.sort.default",
    "aten.sort.stable",
    category="light",
    saves=("output.1",),
    flops=gather_back,
)
def topk(self: TensorHandle, *, dim: int = -1) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """values[…, k], indices[…, k] = best(x[…, :])[k]"""
    return along(self, dim), along(self, dim)


@op(
    "aten.mode.default",
    "aten.kthvalue.default",
    category="light",
    saves=("output.1",),
    flops=gather_back,
)
def chosen(
    self: TensorHandle, *, dim: int = -1, keepdim: bool = False
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """value[…], index[…] = chosen(x[…, :])"""
    return whole(self, dim, keepdim), whole(self, dim, keepdim)


@op("aten.argsort.default", "aten.argsort.stable", category="light", saves=(), flops=gather_back)
def argsort(self: TensorHandle, *, dim: int = -1) -> Callable[..., Any]:
    """y[…, k] = order(x[…, :])[k]"""
    return along(self, dim)


@op("aten.msort.default", category="light", saves=("output",), flops=gather_back)
def msort(self: TensorHandle) -> Callable[..., Any]:
    """y[k, …] = sort(x[:, …])[k]"""
    return along(self, 0)


@op("aten.diff.default", category="light", saves=(), flops=pointwise(1.0))
def diff(
    self: TensorHandle,
    prepend: TensorHandle | None = None,
    append: TensorHandle | None = None,
    *,
    n: int = 1,
    dim: int = -1,
) -> Callable[..., Any]:
    """y[…, i] = x[…, i + 1] - x[…, i]"""
    at = dim_of(dim, self.rank)
    joined = [t for t in (prepend, append) if t is not None]
    if joined:
        parts = [along(t, at) for t in (self, *joined)]
        return lambda *i: apply(*(part(*i) for part in parts))
    return lambda *i: apply(
        *(self[tuple(x + k if d == at else x for d, x in enumerate(i))] for k in range(n + 1))
    )


@op(
    "aten.searchsorted.Tensor",
    category="light",
    saves=(),
    flops=no_flops,
)
def searchsorted(sorted_sequence: TensorHandle, self: TensorHandle) -> Callable[..., Any]:
    """y[…, i] = place of x[…, i] in s[…, :]"""
    place = Opaque()
    if sorted_sequence.rank == 1:
        return lambda *i: place(self[i], sorted_sequence[:])
    return lambda *i: place(self[i], sorted_sequence[(*i[:-1], slice(None))])


@op("aten.bucketize.Tensor", category="light", saves=(), flops=no_flops)
def bucketize(self: TensorHandle, boundaries: TensorHandle) -> Callable[..., Any]:
    """y[i] = place of x[i] in b[:]"""
    place = Opaque()
    return lambda *i: place(self[i], boundaries[:])


@op("aten.isin.Tensor_Tensor", category="light", saves=(), flops=no_flops)
def isin(elements: TensorHandle, test_elements: TensorHandle) -> Callable[..., Any]:
    """y[i] = x[i] is among t[:]"""
    known = Opaque()
    return lambda *i: known(elements[i], all_of(test_elements))


@op("aten.multinomial.default", category="light", saves=(), flops=no_flops)
def multinomial(self: TensorHandle) -> Callable[..., Any]:
    """y[…, k] = drawn from x[…, :]"""
    draw = Opaque()
    return lambda *i: draw(self[(*i[:-1], slice(None))])


@op("aten.cross.default", "aten.linalg_cross.default", category="light", saves=("*",))
def cross(self: TensorHandle, other: TensorHandle, *, dim: int | None = None) -> Callable[..., Any]:
    """y[…, k] = a[…, :] × b[…, :]"""
    rank = max(self.rank, other.rank)
    at = dim_of(dim, rank) if dim is not None else self.shape.index(3)
    product = Opaque()

    def output(*i: Any) -> Any:
        parts = []
        for t in (self, other):
            index = i[rank - t.rank :]
            own = at - rank + t.rank
            parts.append(
                t[
                    tuple(
                        slice(None) if d == own else 0 if t.shape[d] == 1 else x
                        for d, x in enumerate(index)
                    )
                ]
            )
        return product(*parts)

    return output
