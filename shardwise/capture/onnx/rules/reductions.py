"""Reductions, arg-reductions, scans and top-k."""

from __future__ import annotations

from typing import Any

from shardwise.capture.onnx.builder import Builder, NotTranslated
from shardwise.capture.onnx.constants import axes_of
from shardwise.capture.onnx.program import Node
from shardwise.capture.onnx.rules.rule import Rule


def _dims(b: Builder, n: Node) -> list[int]:
    if n.input(1) and b.constant(n.input(1)) is None:
        raise NotTranslated("a reduction over computed dimensions")
    rank = b.rank(n.inputs[0])
    axes = axes_of(n, b.constants(n))
    if not axes:
        return [] if n.attributes.get("noop_with_empty_axes") else list(range(rank))
    return sorted(axis % rank for axis in axes)


def _reduce(kind: str, whole: str, **more: Any) -> Rule:
    """Returns a rule; `whole` is the form that leaves one number without dimensions."""

    def translate(b: Builder, n: Node) -> None:
        x, out = n.inputs[0], n.outputs[0]
        dims = _dims(b, n)
        keep = bool(n.attributes.get("keepdims", 1))
        if not dims:
            raise NotTranslated("a reduction over nothing")
        if whole and not b.shape(out) and len(dims) == b.rank(x):
            b.emit(whole, [("self", x)], {}, [out], n)
            return
        b.emit(kind, [("self", x)], {"dim": dims, "keepdim": keep, **more}, [out], n)

    return Rule(translate, kind)


def _product(b: Builder, n: Node) -> None:
    dims = _dims(b, n)
    if len(dims) != 1:
        raise NotTranslated("a product over several dimensions")
    attributes = {"dim": dims[0], "keepdim": bool(n.attributes.get("keepdims", 1))}
    b.emit("aten.prod.dim_int", [("self", n.inputs[0])], attributes, n.outputs, n)


def _square_sum(b: Builder, n: Node) -> None:
    x = n.inputs[0]
    squared = b.temporary(b.shape(x), b.dtype(x))
    b.emit("aten.pow.Tensor_Scalar", [("self", x)], {"exponent": 2}, [squared], n)
    attributes = {"dim": _dims(b, n), "keepdim": bool(n.attributes.get("keepdims", 1))}
    b.emit("aten.sum.dim_IntList", [("self", squared)], attributes, n.outputs, n)


def _arg(kind: str) -> Rule:
    def translate(b: Builder, n: Node) -> None:
        attributes = {
            "dim": n.attributes.get("axis", 0) % b.rank(n.inputs[0]),
            "keepdim": bool(n.attributes.get("keepdims", 1)),
        }
        b.emit(kind, [("self", n.inputs[0])], attributes, n.outputs, n)

    return Rule(translate, kind)


def _top_k(b: Builder, n: Node) -> None:
    count = b.number(n.inputs[1])
    if count is None or len(n.outputs) != 2:
        raise NotTranslated("a computed number of places")
    values, indices = n.outputs
    attributes = {
        "k": int(count),
        "dim": n.attributes.get("axis", -1) % b.rank(n.inputs[0]),
        "largest": bool(n.attributes.get("largest", 1)),
        "sorted": bool(n.attributes.get("sorted", 1)),
    }
    names = [
        name or b.temporary(b.shape(indices or values), dtype)
        for name, dtype in ((values, b.dtype(n.inputs[0])), (indices, "int64"))
    ]
    b.emit("aten.topk.default", [("self", n.inputs[0])], attributes, names, n)


def _cumulative(b: Builder, n: Node) -> None:
    axis = b.number(n.inputs[1])
    if axis is None or n.attributes.get("exclusive") or n.attributes.get("reverse"):
        raise NotTranslated("a running sum of this form")
    attributes = {"dim": int(axis) % b.rank(n.inputs[0])}
    b.emit("aten.cumsum.default", [("self", n.inputs[0])], attributes, n.outputs, n)


RULES: dict[str, Rule] = {
    "ReduceSum": _reduce("aten.sum.dim_IntList", "aten.sum.default"),
    "ReduceMean": _reduce("aten.mean.dim", "aten.mean.default"),
    "ReduceMax": _reduce("aten.amax.default", ""),
    "ReduceMin": _reduce("aten.amin.default", ""),
    "ReduceL1": _reduce("aten.linalg_vector_norm.default", "", ord=1),
    "ReduceL2": _reduce("aten.linalg_vector_norm.default", "", ord=2),
    "ReduceLogSumExp": _reduce("aten.logsumexp.default", ""),
    "ReduceProd": Rule(_product, "aten.prod.dim_int"),
    "ReduceSumSquare": Rule(_square_sum, "aten.pow.Tensor_Scalar, aten.sum.dim_IntList"),
    "ArgMax": _arg("aten.argmax.default"),
    "ArgMin": _arg("aten.argmin.default"),
    "TopK": Rule(_top_k, "aten.topk.default"),
    "CumSum": Rule(_cumulative, "aten.cumsum.default"),
}
