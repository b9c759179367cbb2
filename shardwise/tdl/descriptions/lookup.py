"""Reading rows by computed indices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shardwise.tdl.describe import Call, no_flops, op, pointwise
from shardwise.tdl.descriptions.arguments import dim_of
from shardwise.tdl.descriptions.movement import all_of
from shardwise.tdl.language import (
    Constant,
    Max,
    NotCovered,
    Opaque,
    Sum,
    TensorHandle,
    apply,
    named,
)


def _scatter_flops(call: Call) -> tuple[float, float]:
    return 0.0, float(call.output_elements)


@op("aten.embedding.default", saves=("indices",), flops=_scatter_flops)
def embedding(weight: TensorHandle, indices: TensorHandle) -> Callable[..., Any]:
    """y[i, h] = Σ_v [indices[i] = v] w[v, h]: a split vocabulary gives partial rows"""
    return lambda *i: Sum(
        named(lambda *v: apply(indices[i[:-1]]) * weight[(*v, i[-1])], "vocab"), weight.shape[:1]
    )


@op(
    "aten.embedding_dense_backward.default",
    category="light",
    saves=(),
    flops=no_flops,
)
def embedding_dense_backward(
    grad_output: TensorHandle, indices: TensorHandle
) -> Callable[..., Any]:
    """y[v, h] = Σ_i [indices[i] = v] g[i, h]"""
    return lambda v, h: Sum(lambda *i: apply(indices[i]) * grad_output[(*i, h)], indices.shape)


def _bag_saves(call: Call) -> tuple[str, ...]:
    """Returns the bookkeeping results, and for the gradient of weights per sample the table."""
    kept = ("indices", "offsets", "per_sample_weights", "output.1", "output.2", "output.3")
    return ("weight", *kept) if "per_sample_weights" in call.shapes else kept


@op(
    "aten.embedding_bag.default",
    "aten.embedding_bag.padding_idx",
    "aten._embedding_bag.default",
    "aten._embedding_bag_forward_only.default",
    saves=_bag_saves,
    flops=pointwise(1.0),
    note="each device keeps the results after the first for its own bags",
)
def embedding_bag(
    weight: TensorHandle,
    indices: TensorHandle,
    offsets: TensorHandle,
    per_sample_weights: TensorHandle | None = None,
    *,
    mode: int = 0,
    out: Any,
) -> list[Callable[..., Any]]:
    """y[b, h] = Σ_v [v is in bag b] w[v, h]: a split table gives partial bags, added up"""
    reduce = Max if mode == MAXIMUM else Sum

    def bags(bag: Any, e: Any) -> Any:
        rows = [offsets[bag], offsets[bag + 1], indices[:]]
        rows += [per_sample_weights[:]] if per_sample_weights is not None else []

        def row(*v: Any) -> Any:
            return apply(*rows, weight[(*v, e)])

        return apply(reduce(named(row, "vocab"), weight.shape[:1]))

    winners = mode == MAXIMUM

    def book(*i: Any) -> Any:
        return bags(*i) if winners and len(i) == 2 else Constant(0.0)

    return [bags, *(named(book, "bag", "e") if len(s) == 2 else book for s in out[1:])]


MAXIMUM = 2
"""The mode of an embedding bag that takes the largest value of each column."""


@op("aten.gather.default", category="light", saves=("self", "index"), flops=no_flops)
def gather(self: TensorHandle, index: TensorHandle, *, dim: int) -> Callable[..., Any]:
    """y[i] = Σ_v [index[i] = v] x[…, v, …]: a split dimension gives partial results"""
    if not self.rank:
        return lambda *i: apply(self[()], index.at(i))
    at = dim_of(dim, self.rank)

    def output(*i: Any) -> Any:
        def term(*v: Any) -> Any:
            places = tuple(
                v[0] if d == at else x if self.shape[d] == index.shape[d] else slice(None)
                for d, x in enumerate(i)
            )
            return apply(index[i]) * self[places]

        return Sum(named(term, "row"), (self.shape[at],))

    return output


@op("aten.take_along_dim.default", category="light", saves=("self", "indices"), flops=no_flops)
def take_along_dim(
    self: TensorHandle, indices: TensorHandle, *, dim: int | None = None
) -> Callable[..., Any]:
    """y[i] = x[…, indices[i], …]"""
    pick = Opaque()
    if dim is None:
        return lambda *i: pick(all_of(self), indices[i])
    at = dim_of(dim, self.rank)
    return lambda *i: pick(
        self[
            tuple(
                slice(None) if d == at else 0 if self.shape[d] == 1 else x for d, x in enumerate(i)
            )
        ],
        indices.at(i),
    )


@op("aten.take.default", category="light", saves=("self", "index"), flops=no_flops)
def take(self: TensorHandle, index: TensorHandle) -> Callable[..., Any]:
    """y[i] = x at place index[i] in memory"""
    pick = Opaque()
    return lambda *i: pick(all_of(self), index[i])


@op("aten.index_select.default", category="light", saves=("index",), flops=no_flops)
def index_select(self: TensorHandle, index: TensorHandle, *, dim: int) -> Callable[..., Any]:
    """y[…, i, …] = Σ_v [index[i] = v] x[…, v, …]: a split dimension gives partial results"""
    at = dim_of(dim, self.rank)

    def output(*i: Any) -> Any:
        chosen = index[i[at]] if index.rank else index[()]

        def term(*v: Any) -> Any:
            return apply(chosen) * self[(*i[:at], *v, *i[at + 1 :])]

        return Sum(named(term, "row"), (self.shape[at],))

    return output


def indexed_dims(
    tensor: TensorHandle, indices: list[TensorHandle | None]
) -> tuple[dict[int, TensorHandle], int, int]:
    """Returns the indices by dimension, how many dimensions they have, and their place.

    They take the place of the indexed dimensions, or are first if those are apart.
    """
    given = {d: t for d, t in enumerate(indices) if t is not None}
    if not given or max(given) >= tensor.rank:
        raise NotCovered("indices for dimensions that are not there")
    adjacent = max(given) - min(given) + 1 == len(given)
    return given, max(t.rank for t in given.values()), min(given) if adjacent else 0


@op(
    "aten.index.Tensor",
    "aten._unsafe_index.Tensor",
    category="light",
    saves=("indices",),
    flops=no_flops,
)
def index(self: TensorHandle, indices: list[TensorHandle | None]) -> Callable[..., Any]:
    """y[…, i…, …] = x[…, a[i…], b[i…], …]: indexed dimensions are needed whole"""
    given, rank, start = indexed_dims(self, indices)
    pick = Opaque()

    def output(*i: Any) -> Any:
        chosen = i[start : start + rank]
        others = iter((*i[:start], *i[start + rank :]))
        places = tuple(slice(None) if d in given else next(others) for d in range(self.rank))
        return pick(self[places], *(t.at(chosen) for t in given.values()))

    return output
