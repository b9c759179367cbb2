"""Pooling on shares of space: windows reach into neighbours; only outer borders are padded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from shardwise.execute.local.calling import Run, bind
from shardwise.execute.local.plain import plain
from shardwise.execute.local.registry import form
from shardwise.execute.local.share import NotLocal, Share
from shardwise.execute.local.windows import bring_window, pads_anywhere
from shardwise.tdl.descriptions.arguments import per_spatial_dim


@form(*(f"max_pool{n}d.default" for n in (1, 2, 3)))
def max_pool(share: Share) -> Run:
    """Pads with -inf, so that nothing beyond the outer borders wins."""
    windows = _Windows(share)
    if not windows.brings:
        return plain(share)
    attributes = {**share.attributes, **windows.attributes}
    run = bind(share.target, share.arguments, attributes, 1)
    return lambda x: run(windows.data(x, -torch.inf))


@form(*(f"avg_pool{n}d.default" for n in (1, 2, 3)))
def avg_pool(share: Share) -> Run:
    """Sums windows and divides by the divisors they have in the whole."""
    windows = _Windows(share)
    if not windows.brings:
        return plain(share)
    shape = share.inputs[0].shape
    spatial = len(shape) - 2
    # The mean over ones is (places inside) / divisor; the whole window is summed here.
    ones = torch.ones((1, 1, *shape[2:]), dtype=torch.float64)
    inside = bind(share.target, share.arguments, share.attributes, 1)(ones)[0]
    size = per_spatial_dim(share.attributes["kernel_size"], spatial, 1)
    steps, pads = windows.steps, windows.whole_pads
    counts = torch.ones((), dtype=torch.float64)
    for s in range(spatial):
        starts = torch.arange(share.outputs[0].shape[2 + s]) * steps[s] - pads[s]
        within = (starts + size[s]).clamp(max=shape[2 + s]) - starts.clamp(min=0)
        counts = counts.unsqueeze(-1) * within
    factors = inside[0, 0] / counts
    for s in range(spatial):
        rows = share.output_rows(0, 2 + s)
        factors = factors.narrow(s, rows.start, len(rows))
    window = 1
    for n in size:
        window *= n
    attributes = {**share.attributes, **windows.attributes, "count_include_pad": True}
    if "divisor_override" in attributes:
        attributes["divisor_override"] = None
    run = bind(share.target, share.arguments, attributes, 1)
    scale = factors * window
    cached: dict[Any, Any] = {}

    def pooled(x: Any) -> list[Any]:
        key = (x.device, x.dtype)
        if key not in cached:
            cached[key] = scale.to(device=x.device, dtype=x.dtype)
        return [run(windows.data(x, 0.0))[0] * cached[key]]

    return pooled


class _Windows:
    """The rows that a share of the windows reads, as `data`, and padding that is left to torch."""

    def __init__(self, share: Share) -> None:
        attributes, shape = share.attributes, share.inputs[0].shape
        spatial = len(shape) - 2
        if len(share.outputs[0].shape) != spatial + 2 or spatial < 1:
            raise NotLocal("pooling without a batch")
        share.refuse(share.statistics, "a window that is the whole dimension is split")
        size = per_spatial_dim(attributes["kernel_size"], spatial, 1)
        stride = attributes.get("stride")
        steps = size if stride in (None, []) else per_spatial_dim(stride, spatial, 1)
        self.steps = steps
        self.whole_pads = pads = per_spatial_dim(attributes["padding"], spatial, 0)
        gaps = per_spatial_dim(attributes.get("dilation"), spatial, 1)
        self.brings: list[Callable[[Any], Any]] = []
        self.widths = [0] * (2 * spatial)
        # As in `bring_rows_at`: all ranks pad, or none.
        self.padded = False
        for s in range(spatial):
            if not share.output_axes(0, 2 + s):
                continue

            def wanted(at: Sequence[int], s: int = s) -> range:
                axes = share.output_axes(0, 2 + s)
                r = share.mesh.share(share.outputs[0].shape[2 + s], axes, at)
                reach = gaps[s] * (size[s] - 1)
                low = r.start * steps[s] - pads[s]
                return range(low, (r.stop - 1) * steps[s] - pads[s] + reach + 1)

            bring, beyond = bring_window(share, 2 + s, wanted)
            place = 2 * (spatial - 1 - s)
            self.widths[place : place + 2] = beyond(share.mesh.coordinates)
            self.padded |= pads_anywhere(share.mesh, beyond)
            self.brings.append(bring)
        if self.brings:
            # Padding of dimensions that are whole is done together with that of the others.
            for s in range(spatial):
                if not share.output_axes(0, 2 + s):
                    place = 2 * (spatial - 1 - s)
                    self.widths[place : place + 2] = [pads[s], self._after(share, s)]
            self.padded |= any(self.widths)
        self.attributes = {"padding": [0] * spatial, "stride": steps, "ceil_mode": False}

    def _after(self, share: Share, s: int) -> int:
        """Returns how many rows beyond the data the last window reads."""
        attributes = share.attributes
        spatial = len(share.inputs[0].shape) - 2
        size = per_spatial_dim(attributes["kernel_size"], spatial, 1)[s]
        gap = per_spatial_dim(attributes.get("dilation"), spatial, 1)[s]
        last = (share.outputs[0].shape[2 + s] - 1) * self.steps[s] - self.whole_pads[s]
        return last + gap * (size - 1) + 1 - share.inputs[0].shape[2 + s]

    def data(self, x: Any, fill: float) -> Any:
        """Returns the rows of all windows of this share."""
        for bring in self.brings:
            x = bring(x)
        if self.padded:
            x = torch.nn.functional.pad(x, self.widths, value=fill)
        return x


@form(
    *(f"adaptive_avg_pool{n}d.default" for n in (1, 2, 3)),
    *(f"_adaptive_avg_pool{n}d.default" for n in (2, 3)),
)
def adaptive_avg_pool(share: Share) -> Run:
    """Pools cells of the local part; a share of a single cell is a term of its sum."""
    local = list(share.output_shape()[2:])
    run = bind(share.target, share.arguments, {**share.attributes, "output_size": local}, 1)
    if not share.reductions:
        return plain(share, {"output_size": local})
    part = share.fraction(share.reductions)
    return lambda x: [run(x)[0] * part]


@form(*(f"adaptive_max_pool{n}d.default" for n in (1, 2, 3)))
def adaptive_max_pool(share: Share) -> Run:
    """Needs the whole plane, since positions are counted in it."""
    count = len(share.outputs[0].shape) - 2
    if any(share.output_axes(0, 2 + s) for s in range(count)):
        raise NotLocal("places of maxima are those in the whole plane")
    return plain(share)


@form(*(f"max_pool{n}d_with_indices.default" for n in (1, 2, 3)))
def max_pool_with_indices(share: Share) -> Run:
    """Works like max_pool; turns positions in the local rows into ones in the whole plane."""
    windows = _Windows(share)
    if not windows.brings:
        return plain(share)
    shape = share.inputs[0].shape
    spatial = len(shape) - 2
    attributes = {**share.attributes, **windows.attributes}
    run = bind(share.target, share.arguments, attributes, 2)
    starts = []
    for s in range(spatial):
        rows = share.output_rows(0, 2 + s)
        starts.append(rows.start * windows.steps[s] - windows.whole_pads[s])

    def pooled(x: Any) -> list[Any]:
        data = windows.data(x, -torch.inf)
        values, places = run(data)
        whole = torch.zeros_like(places)
        stride = 1
        for s in reversed(range(spatial)):
            local = data.shape[2 + s]
            whole = whole + (places % local + starts[s]) * stride
            places = places // local
            stride *= shape[2 + s]
        return [values, whole]

    return pooled


@form(
    *(f"avg_pool{n}d_backward.default" for n in (2, 3)),
    *(f"max_pool{n}d_with_indices_backward.default" for n in (2, 3)),
    *(f"_adaptive_avg_pool{n}d_backward.default" for n in (2, 3)),
)
def pool_backward(share: Share) -> Run:
    """Runs whole only: training graphs contain no gradient operators."""
    if share.variables:
        raise NotLocal("gradients of pooling as an operator of the graph")
    return plain(share)
