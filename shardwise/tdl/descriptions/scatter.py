"""Writing to computed places: scatters, indexed sums and assignments.

The dimension that is written to may be split: every share then looks at all indices and takes
what falls into it. Where values are added, the dimension that is read may be split as well, and
leaves partial sums.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shardwise.tdl.describe import no_flops, op, pointwise
from shardwise.tdl.descriptions.arguments import dim_of
from shardwise.tdl.descriptions.lookup import indexed_dims
from shardwise.tdl.descriptions.movement import all_of
from shardwise.tdl.language import Opaque, Sum, TensorHandle, apply, named


def _beside(tensor: TensorHandle, like: TensorHandle, at: int, i: Any, place: Any) -> Any:
    """Indices of `tensor` that run with the output's where extents agree; `place` along `at`."""
    if not tensor.rank:
        return ()
    return tuple(
        place if d == at else x if tensor.shape[d] == like.shape[d] else slice(None)
        for d, x in enumerate(i)
    )


@op(
    "aten.scatter.src",
    "aten.scatter.value",
    category="light",
    saves=("index",),
    flops=no_flops,
)
@op(
    "aten.scatter.reduce",
    "aten.scatter.value_reduce",
    category="light",
    saves=(),
    flops=no_flops,
)
def scatter(
    self: TensorHandle, index: TensorHandle, src: TensorHandle | None = None, *, dim: int
) -> Callable[..., Any]:
    """y[…, k, …] = s[…, j, …] where index[…, j, …] = k, else x[…, k, …]"""
    at = dim_of(dim, self.rank)
    place = Opaque()
    written = [t for t in (index, src) if t is not None]
    return lambda *i: place(self[i], *(t[_beside(t, self, at, i, slice(None))] for t in written))


@op(
    "aten.scatter_reduce.two",
    category="light",
    saves=("self", "index", "src", "output"),
    flops=pointwise(1.0),
)
def scatter_reduce(
    self: TensorHandle, index: TensorHandle, src: TensorHandle, *, dim: int
) -> Callable[..., Any]:
    """y[…, k, …] = reduce(x[…, k, …], s[…, j, …] where index[…, j, …] = k)"""
    return scatter(self, index, src, dim=dim)


@op("aten.scatter_add.default", category="light", saves=("index",), flops=no_flops)
def scatter_add(
    self: TensorHandle, index: TensorHandle, src: TensorHandle, *, dim: int
) -> Callable[..., Any]:
    """y[…, k, …] = x[…, k, …] + Σ_j [index[…, j, …] = k] s[…, j, …]"""
    at = dim_of(dim, self.rank)

    def output(*i: Any) -> Any:
        def term(j: Any) -> Any:
            target = index[_beside(index, self, at, i, j)]
            return apply(target) * src[_beside(src, self, at, i, j)]

        return Sum(named(lambda *j: term(*j), "source"), (index.shape[at],)) + self[i]

    return output


@op("aten.index_add.default", category="light", saves=("index", "source"), flops=no_flops)
def index_add(
    self: TensorHandle, index: TensorHandle, source: TensorHandle, *, dim: int
) -> Callable[..., Any]:
    """y[…, k, …] = x[…, k, …] + Σ_j [index[j] = k] s[…, j, …]"""
    at = dim_of(dim, self.rank)

    def output(*i: Any) -> Any:
        def term(*j: Any) -> Any:
            return apply(index[j]) * source[(*i[:at], *j, *i[at + 1 :])]

        return Sum(named(term, "source"), index.shape) + self[i]

    return output


@op(
    "aten.index_reduce.default",
    category="light",
    saves=("self", "index", "source", "output"),
    flops=pointwise(1.0),
)
@op("aten.index_copy.default", category="light", saves=("index", "source"), flops=no_flops)
def index_copy(
    self: TensorHandle, index: TensorHandle, source: TensorHandle, *, dim: int
) -> Callable[..., Any]:
    """y[…, index[j], …] = s[…, j, …], else x"""
    at = dim_of(dim, self.rank)
    place = Opaque()
    return lambda *i: place(self[i], index[:], source[(*i[:at], slice(None), *i[at + 1 :])])


@op(
    "aten.index_fill.int_Scalar",
    "aten.index_fill.int_Tensor",
    category="light",
    saves=("index",),
    flops=no_flops,
)
def index_fill(
    self: TensorHandle, index: TensorHandle, value: TensorHandle | None = None
) -> Callable[..., Any]:
    """y[…, index[j], …] = value, else x"""
    place = Opaque()
    more = [value[()]] if value is not None else []
    return lambda *i: place(self[i], all_of(index), *more)


@op(
    "aten.index_put.default",
    "aten._unsafe_index_put.default",
    category="light",
    saves=("indices",),
    flops=no_flops,
)
def index_put(
    self: TensorHandle, indices: list[TensorHandle | None], values: TensorHandle
) -> Callable[..., Any]:
    """y[…, a[j…], …] = v[…, j…, …], or added to it; else x"""
    given, rank, start = indexed_dims(self, indices)
    place = Opaque()

    def output(*i: Any) -> Any:
        others = [x for d, x in enumerate(i) if d not in given]
        outer = [*others[:start], *[slice(None)] * rank, *others[start:]]
        aligned = outer[len(outer) - values.rank :]
        parts = tuple(
            0 if size == 1 else slice(None) if isinstance(x, slice) else x
            for x, size in zip(aligned, values.shape, strict=True)
        )
        return place(self[i], values[parts], *map(all_of, given.values()))

    return output


@op("aten.masked_scatter.default", category="light", saves=("mask",), flops=no_flops)
def masked_scatter(
    self: TensorHandle, mask: TensorHandle, source: TensorHandle
) -> Callable[..., Any]:
    """y[i] = the next of s where mask[i], else x[i]: mask and source are needed whole"""
    place = Opaque()
    return lambda *i: place(self.at(i), all_of(mask), all_of(source))


@op("aten.put.default", category="light", saves=("index", "source"), flops=no_flops)
def put(self: TensorHandle, index: TensorHandle, source: TensorHandle) -> Callable[..., Any]:
    """y[i] = s[j] where index[j] is i's place in memory, else x[i]"""
    place = Opaque()
    return lambda *i: place(self[i], all_of(index), all_of(source))
