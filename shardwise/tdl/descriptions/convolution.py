"""Convolution and pooling: windows, hence halo exchange when a spatial dimension is split."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from shardwise.tdl.descriptions.arguments import per_spatial_dim
from shardwise.tdl.language import Max, NotCovered, Sum, TensorHandle, apply, named
from shardwise.tdl.registry import Call, op, pointwise


def _flops(call: Call) -> tuple[float, float]:
    weight = call.shapes["weight"]
    forward = 2.0 * call.output_elements * prod(weight[1:])
    gradients = ("input" in call.differentiable) + ("weight" in call.differentiable)
    return forward, forward * gradients


@op(
    "aten.conv1d.default",
    "aten.conv2d.default",
    "aten.conv3d.default",
    "aten.conv1d.padding",
    "aten.conv2d.padding",
    "aten.conv3d.padding",
    saves=("input", "weight"),
    flops=_flops,
)
def convolution(
    input: TensorHandle,
    weight: TensorHandle,
    bias: TensorHandle | None = None,
    *,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Callable[..., Any]:
    """y[b, co, x] = Σ_{ci, dx} data[b, ci, x·stride + dx·dilation - padding] w[co, ci, dx]"""
    spatial = weight.rank - 2
    steps = per_spatial_dim(stride, spatial, 1)
    gaps = per_spatial_dim(dilation, spatial, 1)
    if isinstance(padding, str):
        pads = _named_padding(padding, weight.shape[2:], gaps)
    else:
        pads = per_spatial_dim(padding, spatial, 0)
    per_group = weight.shape[0] // groups
    axes = ("z", "y", "x")[3 - spatial :]

    def output(b: Any, co: Any, *x: Any) -> Any:
        def term(ci: Any, *dx: Any) -> Any:
            window = tuple(
                at * step + d * gap - pad
                for at, d, step, gap, pad in zip(x, dx, steps, gaps, pads, strict=True)
            )
            if groups == 1:
                channel = ci
            elif weight.shape[1] == 1:
                channel = co // per_group if per_group > 1 else co
            else:
                channel = co // per_group * weight.shape[1] + ci
            return input[(b, channel, *window)] * weight[(co, ci, *dx)]

        total = Sum(named(term, "in", *(f"k{x}" for x in axes)), weight.shape[1:])
        return total + bias[co] if bias is not None else total

    return named(output, "b", "out", *axes)


def _named_padding(padding: str, window: Sequence[int], gaps: Sequence[int]) -> list[int]:
    """What stands before the data; "same" puts an odd remainder behind it."""
    if padding == "valid":
        return [0] * len(window)
    if padding == "same":
        return [gap * (size - 1) // 2 for size, gap in zip(window, gaps, strict=True)]
    raise NotCovered(f"convolution with padding {padding!r}")


@op(
    "aten.max_pool1d.default",
    "aten.max_pool2d.default",
    "aten.max_pool3d.default",
    category="light",
    saves=("self", "output"),
    flops=pointwise(4.0),
    note="keeps its input, and the output in place of the indices",
)
def max_pool(
    self: TensorHandle,
    *,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
) -> Callable[..., Any]:
    """y[…, x] = max_dx data[…, x·stride + dx·dilation - padding]"""
    return _pool(self, kernel_size, stride, padding, dilation, Max)


@op(
    "aten.avg_pool1d.default",
    "aten.avg_pool2d.default",
    "aten.avg_pool3d.default",
    category="light",
    saves=("self",),
    flops=pointwise(4.0),
)
def avg_pool(
    self: TensorHandle, *, kernel_size: Any, stride: Any = None, padding: Any = 0
) -> Callable[..., Any]:
    """y[…, x] = Σ_dx data[…, x·stride + dx - padding] / window"""
    return _pool(self, kernel_size, stride, padding, 1, Sum)


def _pool(
    data: TensorHandle,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    reducer: Callable[..., Any],
) -> Callable[..., Any]:
    spatial = data.rank - 2
    window = per_spatial_dim(kernel_size, spatial, 1)
    steps = per_spatial_dim(stride, spatial, 1) if stride not in (None, []) else window
    pads, gaps = per_spatial_dim(padding, spatial, 0), per_spatial_dim(dilation, spatial, 1)

    def output(*i: Any) -> Any:
        def term(*dx: Any) -> Any:
            places = tuple(
                at * step + d * gap - pad
                for at, d, step, gap, pad in zip(i[2:], dx, steps, gaps, pads, strict=True)
            )
            return data[(*i[:2], *places)]

        # Wrapped in a point-wise function, so that windows are not split across devices.
        return apply(reducer(term, window))

    return output


def _adaptive_saves(call: Call) -> tuple[str, ...]:
    return () if all(size == 1 for size in call.outputs[0][2:]) else ("self",)


@op(
    "aten.adaptive_avg_pool1d.default",
    "aten.adaptive_avg_pool2d.default",
    category="light",
    saves=_adaptive_saves,
    flops=pointwise(1.0),
    note="keeps its input, but nothing where one cell is left: that is a mean",
)
def adaptive_avg_pool(self: TensorHandle, *, output_size: Any) -> Callable[..., Any]:
    """Mean over windows that tile the input; onto one cell it is a sum over all of it."""
    sizes = per_spatial_dim(output_size, self.rank - 2, 1)
    inner = self.shape[2:]
    if all(size == 1 for size in sizes):
        return lambda *i: Sum(lambda *dx: self[(*i[:2], *dx)], inner)
    if any(n % size for n, size in zip(inner, sizes, strict=True)):
        raise NotCovered("adaptive pooling onto windows of several sizes")
    windows = [n // size for n, size in zip(inner, sizes, strict=True)]

    def output(*i: Any) -> Any:
        def term(*dx: Any) -> Any:
            return self[
                (*i[:2], *(at * w + d for at, d, w in zip(i[2:], dx, windows, strict=True)))
            ]

        return apply(Sum(term, windows))

    return output
