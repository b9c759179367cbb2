"""Writing to computed places when the dimension that is written to or read from is split.

A rank that has some rows of the result writes into them and into a spare row, which takes what
falls elsewhere and is cut off. If instead added values are split, every rank has a term of the sum
and the first one adds the tensor itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from shardwise.execute.local.calling import Run, bind
from shardwise.execute.local.plain import plain
from shardwise.execute.local.registry import form
from shardwise.execute.local.share import NotLocal, Share

INDEXED = (
    *("scatter.src", "scatter.value", "scatter.reduce", "scatter.value_reduce"),
    *("scatter_reduce.two", "scatter_add.default", "index_add.default", "index_reduce.default"),
    *("index_copy.default", "index_fill.int_Scalar", "index_fill.int_Tensor"),
)


@form(*INDEXED)
def scatter(share: Share) -> Run:
    """Scatters or assigns by index along one dimension."""
    shape = share.inputs[0].shape
    if not shape or not share.variables:
        return plain(share)
    dim = share.attributes["dim"] % len(shape)
    index = share.argument("index")
    if index is None:
        raise NotLocal("an assignment without an index")
    _same_extents(share, dim, index)
    run = bind(share.target, share.arguments, share.attributes, 1)
    if share.output_axes(0, dim):
        run = _with_spare_row(run, dim, share.output_rows(0, dim), index)
    if not share.reductions:
        return run
    axes, exchange = share.axes(*share.reductions), share.silent
    return lambda x, *rest: run(exchange.first(x, axes), *rest)


def _same_extents(share: Share, dim: int, index: int) -> None:
    """Raises NotLocal for indices that cover only part of a split dimension: their cut differs."""
    shape = share.inputs[0].shape
    like = share.inputs[index].shape
    if len(like) != len(shape):
        return
    for d, (n, m) in enumerate(zip(shape, like, strict=True)):
        if d != dim and n != m and share.output_axes(0, d):
            raise NotLocal(f"indices over part of dimension {d}")


def _with_spare_row(run: Run, dim: int, rows: range, index: int) -> Run:
    """Returns `run` on indices of the whole dimension, into this rank's rows."""

    def local(*inputs: Any) -> list[Any]:
        x, rest = inputs[0], list(inputs[1:])
        rest[index - 1] = spare_place(rest[index - 1], rows)
        (y,) = run(with_spare(x, dim), *rest)
        return [y.narrow(dim, 0, len(rows))]

    return local


def spare_place(places: Any, rows: range) -> Any:
    """Returns places within `rows`; those of other ranks become the row after them."""
    inside = (places >= rows.start) & (places < rows.stop)
    return torch.where(inside, places - rows.start, len(rows))


def with_spare(x: Any, dim: int) -> Any:
    """Returns x with one more row, which is cut off again."""
    shape = list(x.shape)
    shape[dim] = 1
    return torch.cat([x, x.new_ones(shape)], dim)


@form("index_put.default", "_unsafe_index_put.default")
def index_put(share: Share) -> Run:
    """Assigns by several indices; split dimensions that are indexed get a spare row."""
    if not share.variables:
        return plain(share)
    cuts = []
    for i, name in enumerate(share.arguments):
        base, _, place = name.partition(".")
        if base == "indices" and share.output_axes(0, int(place)):
            if share.inputs[i].dtype == "bool":
                raise NotLocal("an assignment by truth values")
            cuts.append((i, int(place), share.output_rows(0, int(place))))
    extents = share.inputs[0].shape
    run = bind(share.target, share.arguments, share.attributes, 1)
    if not cuts:
        return run

    def local(*inputs: Any) -> list[Any]:
        given = list(inputs)
        for i, dim, rows in cuts:
            places = torch.where(given[i] < 0, given[i] + extents[dim], given[i])
            given[i] = spare_place(places, rows)
            given[0] = with_spare(given[0], dim)
        (y,) = run(*given)
        for _, dim, rows in cuts:
            y = y.narrow(dim, 0, len(rows))
        return [y]

    return local


@form("masked_scatter.default", "put.default")
def by_order(share: Share) -> Run:
    """Needs whole inputs: values are taken in the order of all places before them."""
    if share.variables:
        raise NotLocal("each value's place depends on all before it")
    return plain(share)


@form("select_scatter.default", "slice_scatter.default", "diagonal_scatter.default")
def rows_replaced(share: Share) -> Run:
    """Replaces rows of one dimension; a rank that has none of them replaces nothing."""
    attributes, shape = share.attributes, share.inputs[0].shape
    dims = [attributes[name] % len(shape) for name in ("dim", "dim1", "dim2") if name in attributes]
    split = [d for d in dims if share.output_axes(0, d)]
    if not split:
        return plain(share)
    if share.op.kind == "aten.diagonal_scatter.default":
        raise NotLocal("a diagonal across shares")
    dim, extent = dims[0], shape[dims[0]]
    rows = share.output_rows(0, dim)
    if share.op.kind == "aten.select_scatter.default":
        chosen = [attributes["index"] % extent]
        lift: Callable[[Any], Any] = lambda src: src.unsqueeze(dim)  # noqa: E731
    else:
        bounds = slice(attributes.get("start"), attributes.get("end"), attributes.get("step", 1))
        chosen = list(range(*bounds.indices(extent)))
        lift = lambda src: src  # noqa: E731
    sources = [k for k, row in enumerate(chosen) if row in rows]
    places = [chosen[k] - rows.start for k in sources]

    def run(x: Any, src: Any) -> list[Any]:
        taken = torch.tensor(sources, dtype=torch.long, device=x.device)
        into = torch.tensor(places, dtype=torch.long, device=x.device)
        # An empty part still reads the source: its gradient is zeros, not absent.
        return [x.index_copy(dim, into, lift(src).index_select(dim, taken))]

    return run
