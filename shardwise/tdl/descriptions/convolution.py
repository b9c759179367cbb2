"""Convolutions: windows, hence halo exchange when a spatial dimension is split."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from shardwise.tdl.describe import Call, op
from shardwise.tdl.descriptions.arguments import per_spatial_dim
from shardwise.tdl.descriptions.movement import first_dims
from shardwise.tdl.descriptions.windows import Windows
from shardwise.tdl.language import NotCovered, Opaque, Sum, TensorHandle, named


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
    windows = Windows(weight.shape[2:], steps, gaps, pads)
    per_group = weight.shape[0] // groups
    axes = ("z", "y", "x")[3 - spatial :]

    def output(b: Any, co: Any, *x: Any) -> Any:
        def term(ci: Any, *dx: Any) -> Any:
            if groups == 1:
                channel = ci
            elif weight.shape[1] == 1:
                channel = co // per_group if per_group > 1 else co
            else:
                channel = co // per_group * weight.shape[1] + ci
            return input[(b, channel, *windows.read(x, dx))] * weight[(co, ci, *dx)]

        total = Sum(named(term, "in", *(f"k{x}" for x in axes)), weight.shape[1:])
        return total + bias[co] if bias is not None else total

    return named(output, "b", "out", *axes)


def _named_padding(padding: str, window: Sequence[int], gaps: Sequence[int]) -> list[int]:
    """Returns the padding before the data; "same" puts an odd remainder behind it."""
    if padding == "valid":
        return [0] * len(window)
    if padding == "same":
        return [gap * (size - 1) // 2 for size, gap in zip(window, gaps, strict=True)]
    raise NotCovered(f"convolution with padding {padding!r}")


def _transposed_flops(call: Call) -> tuple[float, float]:
    """Every element of the input meets every weight of its channel once."""
    weight = call.shapes["weight"]
    forward = 2.0 * prod(call.shapes["input"]) * prod(weight[1:])
    gradients = ("input" in call.differentiable) + ("weight" in call.differentiable)
    return forward, forward * gradients


@op(
    "aten.conv_transpose1d.default",
    "aten.conv_transpose2d.input",
    "aten.conv_transpose3d.input",
    saves=("input", "weight"),
    flops=_transposed_flops,
)
def transposed_convolution(
    input: TensorHandle,
    weight: TensorHandle,
    bias: TensorHandle | None = None,
    *,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Callable[..., Any]:
    """y[b, co, x] = Σ_{ci, t} data[b, ci, (x + padding) // stride - t] w[ci, co, :]"""
    spatial = weight.rank - 2
    windows = Windows(
        size=weight.shape[2:],
        steps=per_spatial_dim(stride, spatial, 1),
        gaps=per_spatial_dim(dilation, spatial, 1),
        pads=per_spatial_dim(padding, spatial, 0),
    )
    per_group = weight.shape[1]
    inside = weight.shape[0] // groups
    axes = ("z", "y", "x")[3 - spatial :]

    def output(b: Any, co: Any, *x: Any) -> Any:
        def term(ci: Any, *t: Any) -> Any:
            if groups == 1:
                source, filters = ci, (ci, co)
            else:
                source = co // per_group * inside + ci
                filters = (source, co % per_group)
            return input[(b, source, *windows.reaching(x, t))] * first_dims(weight, filters)

        total = Sum(named(term, "in", *(f"k{x}" for x in axes)), (inside, *windows.overlapping))
        return total + bias[co] if bias is not None else total

    return named(output, "b", "out", *axes)


def _core_flops(call: Call) -> tuple[float, float]:
    return (_transposed_flops if call.attributes.get("transposed") else _flops)(call)


@op(
    "aten.convolution.default",
    saves=("input", "weight"),
    flops=_core_flops,
)
def core_convolution(
    input: TensorHandle,
    weight: TensorHandle,
    bias: TensorHandle | None = None,
    *,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    transposed: bool = False,
) -> Callable[..., Any]:
    """As conv or conv_transpose of its rank"""
    form = transposed_convolution if transposed else convolution
    return form(
        input, weight, bias, stride=stride, padding=padding, dilation=dilation, groups=groups
    )


def _backward_flops(call: Call) -> tuple[float, float]:
    """One product per gradient of the data and of the weights, each as large as the forward one."""
    mask = call.attributes.get("output_mask", [True, True, True])
    transposed = call.attributes.get("transposed")
    positions = prod(call.shapes["input" if transposed else "grad_output"])
    product = 2.0 * positions * prod(call.shapes["weight"][1:])
    return product * (bool(mask[0]) + bool(mask[1])), 0.0


@op("aten.convolution_backward.default", saves=(), flops=_backward_flops)
def convolution_backward(
    grad_output: TensorHandle,
    input: TensorHandle,
    weight: TensorHandle,
    *,
    groups: int = 1,
    transposed: bool = False,
    output_mask: Sequence[bool] = (True, True, True),
) -> list[Callable[..., Any]]:
    """Gradients of data[b, ci], w[co, ci] (each a convolution) and of the bias (a sum)"""
    product = Opaque()
    grouped = groups > 1
    spatial = [slice(None)] * (weight.rank - 2)

    def of_input(b: Any, ci: Any, *x: Any) -> Any:
        filters = weight[(ci, slice(None), *spatial) if transposed else (slice(None), ci, *spatial)]
        if grouped:
            filters = weight[(slice(None), slice(None), *spatial)]
        return product(grad_output[(b, slice(None), *spatial)], filters)

    def of_weight(first: Any, second: Any, *x: Any) -> Any:
        ci, co = (first, second) if transposed else (second, first)
        if grouped:
            ci = co = slice(None)

        def term(sample: Any) -> Any:
            return product(
                grad_output[(sample, co, *spatial)],
                input[(sample, ci, *spatial)],
            )

        return Sum(named(lambda *n: term(*n), "sample"), grad_output.shape[:1])

    def of_bias(co: Any) -> Any:
        def term(sample: Any) -> Any:
            return product(grad_output[(sample, slice(None) if grouped else co, *spatial)])

        return Sum(named(lambda *n: term(*n), "sample"), grad_output.shape[:1])

    pair = ("ci", "co") if transposed else ("co", "ci")
    taps = [f"k{n}" for n in range(weight.rank - 2)]
    gradients = (
        named(lambda *i: of_input(*i), "b", "ci", "y", "x"),
        named(lambda *i: of_weight(*i), *pair, *taps),
        named(lambda *i: of_bias(*i), "co"),
    )
    return [g for g, wanted in zip(gradients, output_mask, strict=True) if wanted]
