"""Convolutions on shares of batch, channels, space and taps: padding only at outer borders.

    y[x] = Σ_t data[x·stride + t·dilation - padding] w[t]

Output rows [a, b) of taps [t, u) read data rows a·stride + t·dilation - padding to
(b - 1)·stride + (u - 1)·dilation - padding; those beyond the tensor are zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from shardwise.execute.local.calling import Run
from shardwise.execute.local.deferred import convolution_of
from shardwise.execute.local.plain import plain
from shardwise.execute.local.registry import form
from shardwise.execute.local.share import NotLocal, Share
from shardwise.execute.local.windows import bring_padded, bring_rows
from shardwise.tdl.descriptions.arguments import per_spatial_dim


@form(
    *(f"conv{n}d.{form}" for n in (1, 2, 3) for form in ("default", "padding")),
    *("conv_transpose1d.default", "conv_transpose2d.input", "conv_transpose3d.input"),
    "convolution.default",
)
def convolution(share: Share) -> Run:
    """Fetches rows of neighbours, uses local groups, and adds the bias once."""
    attributes = share.attributes
    spatial = len(share.inputs[1].shape) - 2
    transposed = attributes.get("transposed", "transpose" in share.op.kind)
    steps = per_spatial_dim(attributes["stride"], spatial, 1)
    gaps = per_spatial_dim(attributes["dilation"], spatial, 1)
    groups = _local_groups(share, transposed)
    axes, exchange = share.axes(*share.reductions), share.silent

    def bias_of(rest: tuple[Any, ...]) -> Any:
        return exchange.first(rest[0], axes) if rest else None

    if transposed:
        return _transposed(share, steps, gaps, groups, bias_of)
    brings, pads = _windows(share, steps, gaps)
    uneven = any(low != high for low, high in pads)
    widths = [n for pair in reversed(pads) for n in pair]
    even = [0] * spatial if uneven else [low for low, _ in pads]
    call = (torch.conv1d, torch.conv2d, torch.conv3d)[spatial - 1]
    pick = _channels_inside(share, groups)
    split = convolution_of(share)

    def run(x: Any, w: Any, *bias: Any) -> list[Any]:
        x = x if pick is None else pick(x)
        for bring in brings:
            x = bring(x)
        if uneven:
            x = torch.nn.functional.pad(x, widths)
        if split is not None:
            none = [0] * spatial
            return [split(x, w, bias_of(bias), steps, even, gaps, False, none, groups)]
        return [call(x, w, bias_of(bias), steps, even, gaps, groups)]

    return run


def _local_groups(share: Share, transposed: bool) -> int:
    """Returns how many groups of channels this rank has."""
    groups: int = share.attributes["groups"]
    if groups == 1:
        return 1
    per_group = share.inputs[0].shape[1] // groups
    local = share.input_shape(0)[1] // per_group
    # Filters are in dimension 0, or in both dimensions of a transposed convolution.
    filters = share.inputs[1].shape[0] // groups
    if share.input_shape(0)[1] % per_group or share.input_shape(1)[0] != local * filters:
        raise NotLocal("a group of channels is split")
    return local


def _channels_inside(share: Share, groups: int) -> Callable[[Any], Any] | None:
    """Picks, from data with whole groups, the channels that a share of every filter reads."""
    if groups == 1 or not share.input_axes(1, 1):
        return None
    rows = share.input_rows(1, 1)

    def pick(x: Any) -> Any:
        inside = x.unflatten(1, (groups, -1)).narrow(2, rows.start, len(rows))
        return inside.flatten(1, 2)

    return pick


def _windows(
    share: Share, steps: list[int], gaps: list[int]
) -> tuple[list[Callable[[Any], Any]], list[tuple[int, int]]]:
    """Returns functions that fetch rows with their zeros, and the padding of other dimensions."""
    kernel = share.inputs[1].shape[2:]
    given = share.attributes["padding"]
    brings, pads = [], []
    for s, size in enumerate(kernel):
        reach = gaps[s] * (size - 1)
        if given == "same":
            before, after = reach // 2, reach - reach // 2
        elif given == "valid":
            before = after = 0
        else:
            before = after = per_spatial_dim(given, len(kernel), 0)[s]
        outputs, taps = share.output_axes(0, 2 + s), share.input_axes(1, 2 + s)
        if not outputs and not taps:
            pads.append((before, after))
            continue

        def wanted(at: Sequence[int], s: int = s, before: int = before) -> range:
            r = share.mesh.share(share.outputs[0].shape[2 + s], share.output_axes(0, 2 + s), at)
            t = share.mesh.share(kernel[s], share.input_axes(1, 2 + s), at)
            return range(
                r.start * steps[s] + t.start * gaps[s] - before,
                (r.stop - 1) * steps[s] + (t.stop - 1) * gaps[s] - before + 1,
            )

        brings.append(bring_padded(share, 2 + s, wanted))
        pads.append((0, 0))
    return brings, pads


def _transposed(
    share: Share,
    steps: list[int],
    gaps: list[int],
    groups: int,
    bias_of: Callable[[tuple[Any, ...]], Any],
) -> Run:
    """Runs a transposed convolution and cuts out this share's rows.

    Input row p writes output rows p·stride + t·dilation - padding.
    """
    attributes = share.attributes
    kernel = share.inputs[1].shape[2:]
    spatial = len(kernel)
    pads = per_spatial_dim(attributes["padding"], spatial, 0)
    more = per_spatial_dim(attributes["output_padding"], spatial, 0)
    brings, cuts, local_pads = [], [], list(pads)
    for s, size in enumerate(kernel):
        dim = 2 + s
        if share.input_axes(1, dim):
            raise NotLocal("the taps of a transposed convolution are split")
        if not share.output_axes(0, dim):
            continue
        reach, extent = gaps[s] * (size - 1), share.inputs[0].shape[dim]

        def wanted(r: range, s: int = s, reach: int = reach, extent: int = extent) -> range:
            low = -(-(r.start + pads[s] - reach) // steps[s])
            high = (r.stop - 1 + pads[s]) // steps[s] + 1
            return range(max(low, 0), min(high, extent))

        rows = share.output_rows(0, dim)
        brings.append(bring_rows(share, 0, dim, wanted))
        local_pads[s] = 0
        cuts.append((dim, rows.start + pads[s] - wanted(rows).start * steps[s], len(rows)))
    call = convolution_of(share) or torch.ops.aten.convolution.default

    def run(x: Any, w: Any, *bias: Any) -> list[Any]:
        for bring in brings:
            x = bring(x)
        y = call(x, w, bias_of(bias), steps, local_pads, gaps, True, more, groups)
        for dim, start, length in cuts:
            y = y.narrow(dim, start, length)
        return [y]

    return run


@form("convolution_backward.default")
def convolution_backward(share: Share) -> Run:
    """Runs whole only: training graphs contain no gradient operators."""
    if share.variables:
        raise NotLocal("gradients of a convolution as an operator of the graph")
    return plain(share)
