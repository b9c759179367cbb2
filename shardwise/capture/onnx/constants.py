"""Computes a node's outputs from known inputs, in numpy: shape arithmetic, masks, positions.

It covers only what exporters build such things from; anything else stays an operator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shardwise.capture.onnx.program import Array, Node

Evaluate = Callable[[Node, list[Array | None]], Sequence[Array]]

FAILURES = (ValueError, TypeError, IndexError, KeyError, ArithmeticError, MemoryError)
"""What numpy raises on arguments that do not fit; the node then stays unchanged."""


def evaluate(node: Node, inputs: list[Array | None]) -> Sequence[Array] | None:
    """Returns the outputs of a node, or None if it cannot be computed here."""
    rule = _RULES.get(node.type) if node.is_standard else None
    if rule is None:
        return None
    try:
        with np.errstate(all="ignore"):
            return [np.asarray(value) for value in rule(node, inputs)]
    except FAILURES:
        return None


def _simple(function: Callable[..., Any]) -> Evaluate:
    return lambda node, inputs: [function(*inputs)]


def _like(function: Callable[..., Any]) -> Evaluate:
    """Returns a rule whose result keeps the dtype of its first input (no promotion)."""

    def rule(node: Node, inputs: list[Array | None]) -> Sequence[Array]:
        first = _given(inputs, 0)
        return [np.asarray(function(*inputs)).astype(first.dtype, copy=False)]

    return rule


def _given(inputs: list[Array | None], position: int) -> Array:
    value = inputs[position]
    if value is None:
        raise ValueError("an input is missing")
    return value


def ints(value: Array | Sequence[int] | int | None) -> list[int]:
    """Returns integers from an attribute or a constant."""
    return [int(v) for v in np.asarray([] if value is None else value).reshape(-1)]


def axes_of(node: Node, inputs: list[Array | None], position: int = 1) -> list[int] | None:
    """Returns axes, which older operator sets give as an attribute, newer ones as an input."""
    if "axes" in node.attributes:
        return ints(node.attributes["axes"])
    if position < len(inputs) and inputs[position] is not None:
        return ints(inputs[position])
    return None


def reshaped(shape: Sequence[int], wanted: Sequence[int], allowzero: bool = False) -> list[int]:
    """Returns the target of a Reshape: 0 keeps an extent, -1 takes what is left."""
    target = [
        shape[place] if extent == 0 and not allowzero else extent
        for place, extent in enumerate(wanted)
    ]
    if -1 in target:
        rest = int(np.prod([e for e in target if e != -1], dtype=object))
        target[target.index(-1)] = int(np.prod(shape, dtype=object)) // max(rest, 1)
    return target


def slice_places(
    node: Node, inputs: list[Array | None], shape: Sequence[int]
) -> list[tuple[int, int, int, int]]:
    """Returns (axis, start, stop, step) of each sliced axis, as numpy takes them."""
    if "starts" in node.attributes:
        starts, ends = ints(node.attributes["starts"]), ints(node.attributes["ends"])
        axes = ints(node.attributes.get("axes", range(len(starts))))
        steps = [1] * len(starts)
    else:
        given = [*inputs, None, None, None, None]
        starts, ends = ints(_given(given, 1)), ints(_given(given, 2))
        axes = ints(given[3]) if given[3] is not None else list(range(len(starts)))
        steps = ints(given[4]) if given[4] is not None else [1] * len(starts)
    places = []
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        at = axis % len(shape)
        places.append((at, *slice(start, end, step).indices(shape[at])))
    return places


def _slice(node: Node, inputs: list[Array | None]) -> Sequence[Array]:
    data = _given(inputs, 0)
    places = [slice(None)] * data.ndim
    for axis, start, stop, step in slice_places(node, inputs, data.shape):
        places[axis] = slice(start, stop if stop >= 0 else None, step)
    return [data[tuple(places)]]


def _reshape(node: Node, inputs: list[Array | None]) -> Sequence[Array]:
    data = _given(inputs, 0)
    wanted = ints(_given(inputs, 1))
    return [data.reshape(reshaped(data.shape, wanted, bool(node.attributes.get("allowzero"))))]


def _squeeze(node: Node, inputs: list[Array | None]) -> Sequence[Array]:
    axes = axes_of(node, inputs)
    return [np.squeeze(_given(inputs, 0), None if axes is None else tuple(axes))]


def _unsqueeze(node: Node, inputs: list[Array | None]) -> Sequence[Array]:
    return [np.expand_dims(_given(inputs, 0), tuple(axes_of(node, inputs) or ()))]


def _expand(node: Node, inputs: list[Array | None]) -> Sequence[Array]:
    data = _given(inputs, 0)
    shape = np.broadcast_shapes(data.shape, tuple(ints(_given(inputs, 1))))
    return [np.broadcast_to(data, shape)]


def _constant(node: Node, inputs: list[Array | None]) -> Sequence[Array]:
    for name, value in node.attributes.items():
        if name in ("value_int", "value_ints"):
            return [np.asarray(value, dtype=np.int64)]
        if name in ("value_float", "value_floats"):
            return [np.asarray(value, dtype=np.float32)]
    raise KeyError("value")


def _filled(node: Node, inputs: list[Array | None]) -> Sequence[Array]:
    from onnx import numpy_helper

    value = np.zeros(1, dtype=np.float32)
    if "value" in node.attributes:
        value = np.asarray(numpy_helper.to_array(node.attributes["value"]))
    return [np.broadcast_to(value.reshape(()), tuple(ints(_given(inputs, 0))))]


def _shape(node: Node, inputs: list[Array | None]) -> Sequence[Array]:
    shape = _given(inputs, 0).shape
    end = node.attributes.get("end")
    return [np.asarray(shape[node.attributes.get("start", 0) : end], dtype=np.int64)]


def _cast(node: Node, inputs: list[Array | None]) -> Sequence[Array]:
    from onnx import helper

    return [_given(inputs, 0).astype(helper.tensor_dtype_to_np_dtype(node.attributes["to"]))]


def _divide(a: Array, b: Array) -> Array:
    if a.dtype.kind in "iu":
        return np.asarray(np.trunc(a / b) if np.all(b) else a // b)
    return np.asarray(a / b)


def _reduced(function: Callable[..., Any]) -> Evaluate:
    def rule(node: Node, inputs: list[Array | None]) -> Sequence[Array]:
        data, axes = _given(inputs, 0), axes_of(node, inputs)
        keep = bool(node.attributes.get("keepdims", 1))
        return [function(data, axis=tuple(axes) if axes else None, keepdims=keep)]

    return rule


def _triangle(node: Node, inputs: list[Array | None]) -> Sequence[Array]:
    k = ints(inputs[1])[0] if len(inputs) > 1 and inputs[1] is not None else 0
    return [(np.triu if node.attributes.get("upper", 1) else np.tril)(_given(inputs, 0), k)]


def _split(node: Node, inputs: list[Array | None]) -> Sequence[Array]:
    data, axis = _given(inputs, 0), node.attributes.get("axis", 0)
    sizes = split_sizes(node, inputs, data.shape[axis])
    return np.split(data, np.cumsum(sizes)[:-1], axis)


def split_sizes(node: Node, inputs: list[Array | None], extent: int) -> list[int]:
    """Returns sizes of the pieces of a Split: given, or as even as possible."""
    if "split" in node.attributes:
        return ints(node.attributes["split"])
    if len(inputs) > 1 and inputs[1] is not None:
        return ints(inputs[1])
    count = int(node.attributes.get("num_outputs", len(node.outputs)))
    each = -(-extent // max(count, 1))
    return [min(each, extent - place * each) for place in range(count)]


_RULES: dict[str, Evaluate] = {
    "Constant": _constant,
    "ConstantOfShape": _filled,
    "Shape": _shape,
    "Size": lambda n, i: [np.asarray(_given(i, 0).size, dtype=np.int64)],
    "Identity": _simple(lambda x: x),
    "Cast": _cast,
    "Gather": lambda n, i: [
        np.take(_given(i, 0), _given(i, 1).astype(np.int64), axis=n.attributes.get("axis", 0))
    ],
    "Concat": lambda n, i: [
        np.concatenate([_given(i, k) for k in range(len(i))], n.attributes["axis"])
    ],
    "Slice": _slice,
    "Split": _split,
    "Reshape": _reshape,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Expand": _expand,
    "Tile": lambda n, i: [np.tile(_given(i, 0), ints(_given(i, 1)))],
    "Transpose": lambda n, i: [np.transpose(_given(i, 0), n.attributes.get("perm"))],
    "Range": lambda n, i: [
        np.arange(*(_given(i, k).item() for k in range(3)), dtype=_given(i, 0).dtype)
    ],
    "Trilu": _triangle,
    "Where": _simple(np.where),
    "Add": _like(np.add),
    "Sub": _like(np.subtract),
    "Mul": _like(np.multiply),
    "Div": _like(_divide),
    "Mod": _like(np.mod),
    "Pow": _like(np.power),
    "Min": _like(lambda *a: np.minimum.reduce(np.broadcast_arrays(*a))),
    "Max": _like(lambda *a: np.maximum.reduce(np.broadcast_arrays(*a))),
    "Neg": _like(np.negative),
    "Abs": _like(np.abs),
    "Floor": _like(np.floor),
    "Ceil": _like(np.ceil),
    "Round": _like(np.round),
    "Sqrt": _like(np.sqrt),
    "Reciprocal": _like(np.reciprocal),
    "Equal": _simple(np.equal),
    "Less": _simple(np.less),
    "LessOrEqual": _simple(np.less_equal),
    "Greater": _simple(np.greater),
    "GreaterOrEqual": _simple(np.greater_equal),
    "Not": _simple(np.logical_not),
    "And": _simple(np.logical_and),
    "Or": _simple(np.logical_or),
    "Xor": _simple(np.logical_xor),
    "IsNaN": _simple(np.isnan),
    "ReduceProd": _reduced(np.prod),
    "ReduceSum": _reduced(np.sum),
    "ReduceMax": _reduced(np.max),
    "ReduceMin": _reduced(np.min),
}
