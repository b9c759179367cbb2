"""Interpolation on shares of space: every rank computes its rows from the rows that they read.

Linear interpolation goes along one dimension after another, with torch's source index:
(x + 1/2) · n/m - 1/2, not below 0, or x · (n - 1)/(m - 1) with aligned corners.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from shardwise.execute.local.calling import Run
from shardwise.execute.local.plain import plain
from shardwise.execute.local.registry import form
from shardwise.execute.local.share import NotLocal, Share
from shardwise.execute.local.windows import bring_rows

FORMS = ("default", "vec")


@form(
    *(
        f"{name}{n}d.{form}"
        for name in ("upsample_nearest", "_upsample_nearest_exact")
        for n in (1, 2, 3)
        for form in ("default", "vec")
    )
)
def nearest(share: Share) -> Run:
    """Copies one element for each of the result; shares of whole factors need no neighbours."""
    if not _splits_space(share):
        return plain(share)
    dims = range(2, len(share.outputs[0].shape))
    for dim in dims:
        whole, cells = share.inputs[0].shape[dim], share.outputs[0].shape[dim]
        if share.output_axes(0, dim) and whole % cells and cells % whole:
            raise NotLocal("a factor that is not whole")
    sizes = list(share.output_shape()[2:])
    changed = {name: None for name in share.attributes if name.startswith("scale")}
    return plain(share, {**changed, "output_size": sizes})


@form(
    *(
        f"upsample_{name}.{form}"
        for name in ("linear1d", "bilinear2d", "trilinear3d")
        for form in ("default", "vec")
    )
)
def linear(share: Share) -> Run:
    """Mixes two neighbours along each dimension."""
    if not _splits_space(share):
        return plain(share)
    attributes = share.attributes
    factors = attributes.get("scale_factors")
    if any(attributes.get(n) is not None for n in ("scales", "scales_d", "scales_h", "scales_w")):
        raise NotLocal("factors that are given apart from the sizes")
    steps = [
        _along(share, dim, attributes["align_corners"])
        for dim in range(2, len(share.outputs[0].shape))
        if share.inputs[0].shape[dim] != share.outputs[0].shape[dim]
    ]
    for s, factor in enumerate(factors or ()):
        if factor * share.inputs[0].shape[2 + s] != share.outputs[0].shape[2 + s]:
            raise NotLocal("a factor that is not the ratio of the sizes")

    def run(x: Any) -> list[Any]:
        for step in steps:
            x = step(x)
        return [x]

    return run


@form(
    *("upsample_bicubic2d.default", "upsample_bicubic2d.vec"),
    *(f"_upsample_{name}2d_aa.{form}" for name in ("bilinear", "bicubic") for form in FORMS),
)
def smooth(share: Share) -> Run:
    """Works along a split dimension of space only if it keeps its extent."""
    if not _splits_space(share):
        return plain(share)
    for dim in range(2, len(share.outputs[0].shape)):
        if share.output_axes(0, dim) and share.inputs[0].shape[dim] != share.outputs[0].shape[dim]:
            raise NotLocal("rows that windows of four or more read have no exact form")
    changed = {name: None for name in share.attributes if name.startswith("scale")}
    if any(share.attributes[name] is not None for name in changed):
        raise NotLocal("factors that are given apart from the sizes")
    return plain(share, {**changed, "output_size": list(share.output_shape()[2:])})


def _splits_space(share: Share) -> bool:
    return any(share.output_axes(0, dim) for dim in range(2, len(share.outputs[0].shape)))


def _along(share: Share, dim: int, aligned: bool) -> Callable[[Any], Any]:
    n, m = share.inputs[0].shape[dim], share.outputs[0].shape[dim]
    rows = share.output_rows(0, dim)
    places = torch.arange(m, dtype=torch.float64)
    source = places * ((n - 1) / max(m - 1, 1)) if aligned else (places + 0.5) * (n / m) - 0.5
    source = source.clamp(min=0)
    low = source.floor().long().clamp(max=n - 1)
    high = (low + 1).clamp(max=n - 1)
    share_of_high = source - low

    def wanted(r: range) -> range:
        return range(int(low[r.start]), int(high[r.stop - 1]) + 1)

    bring = bring_rows(share, 0, dim, wanted)
    start = wanted(rows).start
    own = slice(rows.start, rows.stop)
    broadcast = [1] * len(share.inputs[0].shape)
    broadcast[dim] = -1
    here = (low[own] - start, high[own] - start, share_of_high[own].view(broadcast))
    cached: dict[Any, Any] = {}

    def step(x: Any) -> Any:
        key = (x.device, x.dtype)
        if key not in cached:
            first, second, part = (t.to(x.device) for t in here)
            cached[key] = (first, second, part.to(x.dtype))
        first, second, part = cached[key]
        x = bring(x)
        return torch.lerp(x.index_select(dim, first), x.index_select(dim, second), part)

    return step


@form("affine_grid_generator.default")
def affine_grid(share: Share) -> Run:
    """Makes a grid for every sample; the rows of its matrices are whole."""
    if any(share.output_axes(0, d) for d in range(1, len(share.outputs[0].shape))):
        raise NotLocal("rows of the matrices are split")
    size = [len(share.output_rows(0, 0)), *share.attributes["size"][1:]]
    return plain(share, {"size": size})
