"""Views, copies and slices on local parts, fetching rows of other ranks where rows move."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from shardwise.execute.local.calling import Run
from shardwise.execute.local.plain import plain
from shardwise.execute.local.registry import form
from shardwise.execute.local.share import Share
from shardwise.execute.local.windows import bring_rows
from shardwise.tdl.descriptions.arguments import dim_of


@form(
    *("view.default", "reshape.default", "_unsafe_view.default", "flatten.using_ints"),
    *("unflatten.int", "squeeze.dim", "squeeze_copy.dim", "squeeze_copy.dims"),
    *("squeeze_copy.default", "unsqueeze_copy.default", "view_copy.default"),
    *("_reshape_copy.default", "_reshape_alias.default", "reshape_as.default"),
    *("ravel.default", "atleast_1d.default", "atleast_2d.default", "atleast_3d.default"),
    *("squeeze.dims", "squeeze.default", "unsqueeze.default", "view_as.default"),
)
def reshape(share: Share) -> Run:
    """Returns the local part in the local shape; copies if its memory does not allow a view."""
    shape = share.output_shape()
    share.is_plain = True
    return lambda x, *_: [x.reshape(shape)]


@form("expand.default", "expand_copy.default", "broadcast_to.default", "expand_as.default")
def expand(share: Share) -> Run:
    """Repeats dimensions of one element to the local extent."""
    shape = share.output_shape()
    share.is_plain = True
    return lambda x, *_: [x.expand(shape)]


@form("slice.Tensor", "slice_copy.Tensor", "narrow.default", "narrow_copy.default")
def slice_(share: Share) -> Run:
    """Takes the rows of the slice that this rank's share of the result needs."""
    attributes, shape = share.attributes, share.inputs[0].shape
    dim = dim_of(attributes.get("dim", 0), len(shape))
    if not share.output_axes(0, dim):
        return plain(share)
    step = attributes.get("step", 1)
    start = attributes.get("start") or 0
    start = min(max(start + shape[dim], 0) if start < 0 else start, shape[dim])

    def wanted(rows: range) -> range:
        return range(start + rows.start * step, start + (rows.stop - 1) * step + 1)

    rows = bring_rows(share, 0, dim, wanted)
    return lambda x: [_every(rows(x), dim, step)]


def _every(x: Any, dim: int, step: int) -> Any:
    return x if step == 1 else torch.ops.aten.slice.Tensor(x, dim, 0, None, step)


@form("unfold.default", "unfold_copy.default")
def unfold(share: Share) -> Run:
    """Takes windows along a dimension, with the rows of neighbours that they reach into."""
    attributes, shape = share.attributes, share.inputs[0].shape
    dim, size, step = attributes["dimension"] % len(shape), attributes["size"], attributes["step"]
    if not share.output_axes(0, dim):
        return plain(share)
    rows = bring_rows(share, 0, dim, lambda r: range(r.start * step, (r.stop - 1) * step + size))
    return lambda x: [rows(x).unfold(dim, size, step)]


@form("diff.default")
def diff(share: Share) -> Run:
    """Takes differences of neighbours."""
    attributes, shape = share.attributes, share.inputs[0].shape
    dim, n = dim_of(attributes["dim"], len(shape)), attributes["n"]
    if not share.output_axes(0, dim):
        return plain(share)
    share.refuse(share.statistics, "a statistic over it has no exact form")
    rows = bring_rows(share, 0, dim, lambda r: range(r.start, r.stop + n))
    return lambda x: [torch.diff(rows(x), n, dim)]


@form(
    *("pad.default", "constant_pad_nd.default"),
    *(f"replication_pad{n}d.default" for n in (1, 2, 3)),
)
def pad(share: Share) -> Run:
    """Adds the border on the ranks that have it."""
    attributes, shape = share.attributes, share.inputs[0].shape
    widths = list(attributes["pad" if "pad" in attributes else "padding"])
    mode = attributes.get("mode", "replicate" if "padding" in attributes else "constant")
    value = attributes.get("value", 0.0)
    padded = {len(shape) - 1 - k // 2 for k, width in enumerate(widths) if width}
    split = [d for d in sorted(padded) if share.output_axes(0, d)]
    if not split or mode not in ("constant", "replicate"):
        return plain(share)
    brings: list[Callable[[Any], Any]] = []
    for dim in split:
        place = 2 * (len(shape) - 1 - dim)
        before, extent = widths[place], shape[dim]
        out = share.output_rows(0, dim)
        first, last = out.start - before, out.stop - before

        def wanted(rows: range, before: int = before, extent: int = extent) -> range:
            return _inside(rows.start - before, rows.stop - before, extent)

        own = _inside(first, last, extent)
        widths[place] = own.start - first
        widths[place + 1] = last - own.stop
        brings.append(bring_rows(share, 0, dim, wanted))
    fill = {"value": value or 0.0} if mode == "constant" else {}

    def run(x: Any) -> list[Any]:
        for bring in brings:
            x = bring(x)
        return [torch.nn.functional.pad(x, widths, mode, **fill)]

    return run


def _inside(start: int, stop: int, extent: int) -> range:
    """Returns the existing rows of [start, stop), at least one, for repeating the border."""
    start = min(max(start, 0), extent - 1)
    return range(start, max(min(stop, extent), start + 1))


@form("repeat_interleave.self_int")
def repeat_interleave(share: Share) -> Run:
    """Leaves the size of the result to follow from the local part."""
    return plain(share, {"output_size": None})


@form("one_hot.default")
def one_hot(share: Share) -> Run:
    """Counts the classes over the whole tensor."""
    return plain(share, {"num_classes": share.outputs[0].shape[-1]})


@form("tril.default", "triu.default")
def triangle(share: Share) -> Run:
    """Shifts the diagonal to where it runs through the local part."""
    rank = len(share.outputs[0].shape)
    down, across = share.output_rows(0, rank - 2).start, share.output_rows(0, rank - 1).start
    return plain(share, {"diagonal": share.attributes["diagonal"] + down - across})


@form("cross.default", "linalg_cross.default")
def cross(share: Share) -> Run:
    """Finds the dimension of extent three in the whole shape."""
    dim = share.attributes["dim"]
    return plain(share, {"dim": share.inputs[0].shape.index(3) if dim is None else dim})


@form("new_zeros.default", "new_ones.default", "new_full.default", "new_empty.default")
def new(share: Share) -> Run:
    """Makes a constant of the local shape."""
    return plain(share, {"size": list(share.output_shape())})
