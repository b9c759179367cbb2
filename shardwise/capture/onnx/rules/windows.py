"""Convolution, pooling, resizing: operators over windows."""

from __future__ import annotations

from typing import Any

from shardwise.capture.onnx.builder import Argument, Builder, NotTranslated
from shardwise.capture.onnx.program import Node
from shardwise.capture.onnx.rules.rule import Rule


def _pads(b: Builder, n: Node, window: list[int]) -> tuple[list[int], list[int]]:
    """Returns (before, after) of each spatial dimension."""
    spatial = len(window)
    auto = n.attributes.get("auto_pad", "NOTSET")
    if auto in ("NOTSET", ""):
        pads = list(n.attributes.get("pads", [0] * 2 * spatial))
        return pads[:spatial], pads[spatial:]
    if auto == "VALID":
        return [0] * spatial, [0] * spatial
    steps = n.attributes.get("strides", [1] * spatial)
    gaps = n.attributes.get("dilations", [1] * spatial)
    before, after = [], []
    for size, k, step, gap in zip(b.shape(n.inputs[0])[2:], window, steps, gaps, strict=True):
        wanted = (-(-size // step) - 1) * step + (k - 1) * gap + 1
        missing = max(wanted - size, 0)
        low = missing // 2 if auto == "SAME_UPPER" else missing - missing // 2
        before.append(low)
        after.append(missing - low)
    return before, after


def _evenly_padded(
    b: Builder, n: Node, window: list[int], value: float = 0.0
) -> tuple[str, list[int]]:
    """Returns (data, padding on both sides); uneven padding becomes its own operator before it."""
    x = n.inputs[0]
    before, after = _pads(b, n, window)
    if before == after:
        return x, before
    shape = b.shape(x)
    sides = [s + lo + hi for s, lo, hi in zip(shape[2:], before, after, strict=True)]
    padded = b.temporary((*shape[:2], *sides), b.dtype(x))
    widths = [w for lo, hi in zip(before[::-1], after[::-1], strict=True) for w in (lo, hi)]
    attributes = {"pad": widths, "mode": "constant", "value": value}
    b.emit("aten.pad.default", [("self", x)], attributes, [padded], n)
    return padded, [0] * len(window)


def _with_weights(b: Builder, n: Node, x: str) -> list[Argument]:
    """Returns a convolution's data and weight, and its bias unless that is 0."""
    given: list[Argument] = [("input", x), ("weight", n.inputs[1])]
    if n.input(2) and b.number(n.input(2)) != 0:
        given.append(("bias", n.input(2)))
    return given


def _convolution(b: Builder, n: Node) -> None:
    weight = n.inputs[1]
    spatial = b.rank(weight) - 2
    if spatial not in (1, 2, 3):
        raise NotTranslated(f"a convolution over {spatial} dimensions")
    x, padding = _evenly_padded(b, n, list(b.shape(weight)[2:]))
    b.emit(
        f"aten.conv{spatial}d.default",
        _with_weights(b, n, x),
        {
            "stride": n.attributes.get("strides", [1] * spatial),
            "padding": padding,
            "dilation": n.attributes.get("dilations", [1] * spatial),
            "groups": n.attributes.get("group", 1),
        },
        n.outputs,
        n,
    )


def _transposed(b: Builder, n: Node) -> None:
    weight = n.inputs[1]
    spatial = b.rank(weight) - 2
    if spatial not in (1, 2, 3) or n.attributes.get("auto_pad", "NOTSET") != "NOTSET":
        raise NotTranslated("a transposed convolution of this form")
    before, after = _pads(b, n, list(b.shape(weight)[2:]))
    if before != after:
        raise NotTranslated("a transposed convolution with uneven padding")
    form = "default" if spatial == 1 else "input"
    b.emit(
        f"aten.conv_transpose{spatial}d.{form}",
        _with_weights(b, n, n.inputs[0]),
        {
            "stride": n.attributes.get("strides", [1] * spatial),
            "padding": before,
            "output_padding": n.attributes.get("output_padding", [0] * spatial),
            "groups": n.attributes.get("group", 1),
            "dilation": n.attributes.get("dilations", [1] * spatial),
        },
        n.outputs,
        n,
    )


def _pooling(name: str, border: float, **more: Any) -> Rule:
    def translate(b: Builder, n: Node) -> None:
        window = list(n.attributes["kernel_shape"])
        if any(b.program.consumers.get(o) for o in n.outputs[1:] if o):
            raise NotTranslated("pooling whose indices are read")
        x, padding = _evenly_padded(b, n, window, border)
        attributes = {
            "kernel_size": window,
            "stride": n.attributes.get("strides", [1] * len(window)),
            "padding": padding,
            "ceil_mode": bool(n.attributes.get("ceil_mode", 0)),
            **more,
        }
        if name == "max":
            attributes["dilation"] = n.attributes.get("dilations", [1] * len(window))
        else:
            attributes["count_include_pad"] = bool(n.attributes.get("count_include_pad", 0))
        kind = f"aten.{name}_pool{len(window)}d.default"
        b.emit(kind, [("self", x)], attributes, n.outputs[:1], n)

    return Rule(translate, f"aten.{name}_pool1d/2d/3d.default")


def _global_average(b: Builder, n: Node) -> None:
    spatial = b.rank(n.inputs[0]) - 2
    kind = f"aten.adaptive_avg_pool{spatial}d.default"
    b.emit(kind, [("self", n.inputs[0])], {"output_size": [1] * spatial}, n.outputs, n)


def _global_maximum(b: Builder, n: Node) -> None:
    dims = list(range(2, b.rank(n.inputs[0])))
    b.emit(
        "aten.amax.default", [("self", n.inputs[0])], {"dim": dims, "keepdim": True}, n.outputs, n
    )


def _resize(b: Builder, n: Node) -> None:
    x, out = n.inputs[0], n.outputs[0]
    if b.rank(x) not in (3, 4, 5) or b.shape(x)[:2] != b.shape(out)[:2]:
        raise NotTranslated("resizing of batch or channels")
    size = list(b.shape(out)[2:])
    mode = n.attributes.get("mode", "nearest")
    aligned = n.attributes.get("coordinate_transformation_mode") == "align_corners"
    names = {
        ("nearest", 1): "upsample_nearest1d",
        ("nearest", 2): "upsample_nearest2d",
        ("nearest", 3): "upsample_nearest3d",
        ("linear", 1): "upsample_linear1d",
        ("linear", 2): "upsample_bilinear2d",
        ("linear", 3): "upsample_trilinear3d",
        ("cubic", 2): "upsample_bicubic2d",
    }
    name = names.get((mode, len(size)))
    if name is None:
        raise NotTranslated(f"resizing by {mode}")
    attributes: dict[str, Any] = {"output_size": size, "scale_factors": None}
    if mode != "nearest":
        attributes["align_corners"] = aligned
    b.emit(f"aten.{name}.vec", [("input", x)], attributes, [out], n)


def _pad(b: Builder, n: Node) -> None:
    x = n.inputs[0]
    amounts = n.attributes.get("pads")
    if amounts is None:
        given = b.constant(n.input(1)) if n.input(1) else None
        amounts = None if given is None else [int(v) for v in given.reshape(-1)]
    if amounts is None or n.input(3):
        raise NotTranslated("padding by computed amounts")
    rank = b.rank(x)
    mode = {"edge": "replicate", "reflect": "reflect", "constant": "constant", "wrap": "circular"}
    widths = [w for d in reversed(range(rank)) for w in (amounts[d], amounts[d + rank])]
    while widths[-2:] == [0, 0]:
        widths = widths[:-2]
    value = b.number(n.input(2)) if n.input(2) else n.attributes.get("value", 0.0)
    attributes = {"pad": widths, "mode": mode[n.attributes.get("mode", "constant")], "value": value}
    b.emit("aten.pad.default", [("self", x)], attributes, n.outputs, n)


RULES: dict[str, Rule] = {
    "Conv": Rule(_convolution, "aten.conv1d/2d/3d.default"),
    "ConvTranspose": Rule(_transposed, "aten.conv_transpose1d.default, 2d/3d.input"),
    "MaxPool": _pooling("max", float("-inf")),
    "AveragePool": _pooling("avg", 0.0, divisor_override=None),
    "GlobalAveragePool": Rule(_global_average, "aten.adaptive_avg_pool1d/2d.default"),
    "GlobalMaxPool": Rule(_global_maximum, "aten.amax.default"),
    "Resize": Rule(_resize, "aten.upsample_….vec"),
    "Upsample": Rule(_resize, "aten.upsample_….vec"),
    "Pad": Rule(_pad, "aten.pad.default"),
}
