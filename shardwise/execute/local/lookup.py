"""Rows by computed indices when the rows that may be read are split: every rank reads its own.

An index into another rank's rows reads row 0, and its result is zeroed: a term of the sum.
"""

from __future__ import annotations

from typing import Any

import torch

from shardwise.execute.local.calling import Run
from shardwise.execute.local.deferred import call_of
from shardwise.execute.local.plain import plain
from shardwise.execute.local.registry import form
from shardwise.execute.local.share import NotLocal, Share


def own_rows(index: Any, rows: range) -> tuple[Any, Any]:
    """Returns indices into this rank's rows, and a mask of those that are this rank's."""
    if rows.start:
        index = index - rows.start
    inside = (index >= 0) & (index < len(rows))
    return torch.where(inside, index, 0), inside


@form("embedding.default")
def embedding(share: Share) -> Run:
    """Looks up rows of the table; of a split table every rank has its own, zeros elsewhere."""
    attributes = share.attributes
    if attributes.get("scale_grad_by_freq") and share.variables:
        raise NotLocal("gradients scaled by how often a word occurs in the whole batch")
    if not share.reductions:
        return plain(share)
    rows = share.input_rows(0, 0)
    padding = attributes.get("padding_idx", -1)
    padding = padding - rows.start if padding in rows else -1
    lookup = call_of(share)

    def run(weight: Any, indices: Any) -> list[Any]:
        places, inside = own_rows(indices, rows)
        rows_read = lookup(weight, places, padding)
        return [torch.where(inside.unsqueeze(-1), rows_read, 0.0)]

    return run


@form("gather.default")
def gather(share: Share) -> Run:
    """Picks elements by index along a dimension."""
    attributes, shape = share.attributes, share.inputs[0].shape
    if not shape or not share.reductions:
        return plain(share)
    dim = attributes["dim"] % len(shape)
    rows = share.input_rows(0, dim)

    def run(x: Any, index: Any) -> list[Any]:
        places, inside = own_rows(index, rows)
        return [torch.where(inside, x.gather(dim, places), 0)]

    return run


@form("index_select.default")
def index_select(share: Share) -> Run:
    """Picks rows by index."""
    shape = share.inputs[0].shape
    if not shape or not share.reductions:
        return plain(share)
    dim = share.attributes["dim"] % len(shape)
    rows = share.input_rows(0, dim)

    def run(x: Any, index: Any) -> list[Any]:
        places, inside = own_rows(index, rows)
        broadcast = [1] * len(shape)
        broadcast[dim] = -1
        return [torch.where(inside.view(broadcast), x.index_select(dim, places.view(-1)), 0)]

    return run


@form("embedding_dense_backward.default")
def embedding_dense_backward(share: Share) -> Run:
    """Returns rows of the gradient of a table; a share of the rows takes what falls into it."""
    if share.attributes.get("scale_grad_by_freq") and share.variables:
        raise NotLocal("gradients scaled by how often a word occurs in the whole batch")
    rows = share.output_rows(0, 0)
    padding = share.attributes["padding_idx"]

    def run(grad: Any, indices: Any) -> list[Any]:
        places, inside = own_rows(indices, rows)
        inside = inside & (indices != padding)
        table = grad.new_zeros((len(rows), grad.shape[-1]))
        own_gradients = torch.where(inside.unsqueeze(-1), grad, 0.0).reshape(-1, grad.shape[-1])
        return [table.index_add(0, places.reshape(-1), own_gradients)]

    return run


@form(
    *("embedding_bag.default", "embedding_bag.padding_idx"),
    *("_embedding_bag.default", "_embedding_bag_forward_only.default"),
)
def embedding_bag(share: Share) -> Run:
    """Sums or averages rows by bags; the bookkeeping outputs are each rank's own.

    A share of the bags reads its own stretch of the indices; a share of the table adds its own rows
    (and a mean divides by the whole bag).
    """
    attributes = share.attributes
    if not share.variables:
        return plain(share)
    mode, last = attributes["mode"], attributes["include_last_offset"]
    if attributes["scale_grad_by_freq"]:
        raise NotLocal("gradients scaled by how often a row occurs in the whole batch")
    padding = attributes.get("padding_idx")
    if padding is not None and padding < 0:
        # The public overload counts it from the end; in the others a negative value means none.
        public = share.op.kind == "aten.embedding_bag.padding_idx"
        padding = padding + share.inputs[0].shape[0] if public else None
    names = share.arguments
    cut = _stretch(share) if share.output_axes(0, 0) else None
    sums = _table_share if share.input_axes(0, 0) else _table_whole
    bags = sums(share, mode, last, padding)

    def run(*inputs: Any) -> list[Any]:
        given = dict(zip(names, inputs, strict=True))
        weight, indices, offsets = given["weight"], given["indices"], given["offsets"]
        scales = given.get("per_sample_weights")
        if cut is not None:
            stretch, offsets = cut(indices, offsets)
            indices = indices[stretch]
            scales = scales[stretch] if scales is not None else None
        outputs: list[Any] = bags(weight, indices, offsets, scales)
        return outputs

    return run


def _stretch(share: Share) -> Any:
    """Returns where the indices of the local bags are, and the bags' offsets from there."""
    if share.attributes["include_last_offset"]:
        raise NotLocal("shares of bags with a last offset")
    axes, bags = share.output_axes(0, 0), share.outputs[0].shape[0]
    stop, exchange = share.output_rows(0, 0).stop, share.exchange

    def cut(indices: Any, offsets: Any) -> tuple[slice, Any]:
        every = exchange.gather(offsets, 0, axes, bags)
        begin = int(offsets[0])
        end = len(indices) if stop == bags else int(every[stop])
        return slice(begin, end), offsets - begin

    return cut


def _table_whole(share: Share, mode: int, last: bool, padding: int | None) -> Any:
    call = torch.ops.aten.embedding_bag.padding_idx

    def bags(weight: Any, indices: Any, offsets: Any, scales: Any) -> list[Any]:
        return list(call(weight, indices, offsets, False, mode, False, scales, last, padding))

    return bags


def _table_share(share: Share, mode: int, last: bool, padding: int | None) -> Any:
    """Leaves out rows of other ranks; the bags of all ranks are summed."""
    if mode == MAXIMUM:
        raise NotLocal("the largest rows of bags over shares of the table")
    rows, axes, exchange = share.input_rows(0, 0), share.input_axes(0, 0), share.exchange
    call = torch.ops.aten.embedding_bag.padding_idx

    def bags(weight: Any, indices: Any, offsets: Any, scales: Any) -> list[Any]:
        places, inside = own_rows(indices, rows)
        if padding is not None:
            inside = inside & (indices != padding)
        weights = inside.to(weight.dtype)
        weights = weights if scales is None else weights * scales
        first, *books = call(weight, places, offsets, False, SUM, False, weights, last, None)
        first = exchange.total(first, axes)
        if mode == MEAN:
            first = first / _lengths(indices, offsets, last, padding).to(weight.dtype)
        return [first, *books]

    return bags


def _lengths(indices: Any, offsets: Any, last: bool, padding: int | None) -> Any:
    """Returns how many rows every bag has, at least 1; shape [bags, 1]."""
    counted = torch.ones_like(indices) if padding is None else (indices != padding).long()
    running = torch.cat([counted.new_zeros(1), counted.cumsum(0)])
    ends = offsets[1:] if last else torch.cat([offsets[1:], offsets.new_tensor([len(indices)])])
    starts = offsets[:-1] if last else offsets
    return (running[ends] - running[starts]).clamp_min(1).unsqueeze(1)


SUM, MEAN, MAXIMUM = 0, 1, 2
