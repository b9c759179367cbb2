"""Element-wise operators: arithmetic, comparisons, activations, casts, dropout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardwise.capture.onnx.builder import Argument, Builder, NotTranslated
from shardwise.capture.onnx.fold import dropout_ratio
from shardwise.capture.onnx.program import Node
from shardwise.capture.onnx.rules.rule import Rule


def _unary(kind: str, argument: str = "self", **attributes: Any) -> Rule:
    def translate(b: Builder, n: Node) -> None:
        b.emit(kind, [(argument, n.inputs[0])], attributes, n.outputs[:1], n)

    return Rule(translate, kind)


def _with(kind: str, names: Mapping[str, tuple[str, Any]]) -> Rule:
    """Returns a rule for one input and attributes by PyTorch's names: {torch: (onnx, default)}."""

    def translate(b: Builder, n: Node) -> None:
        given = {torch: n.attributes.get(o, default) for torch, (o, default) in names.items()}
        b.emit(kind, [("self", n.inputs[0])], given, n.outputs, n)

    return Rule(translate, kind)


def binary(b: Builder, n: Node, kind: str, attributes: Mapping[str, Any]) -> None:
    """Emits an operator on two tensors, or on a tensor and then a number."""
    left, right = n.inputs
    value = b.number(right)
    if value is not None and b.rank(right) <= b.rank(left):
        b.emit(kind, [("self", left)], {"other": value, **attributes}, n.outputs, n)
    else:
        b.emit(kind, [("self", left), ("other", right)], attributes, n.outputs, n)


def _binary(name: str, swapped: str = "", **attributes: Any) -> Rule:
    """Returns a rule for two inputs; `swapped` is the operator to use if a number comes first."""

    def translate(b: Builder, n: Node) -> None:
        left, right = n.inputs
        if swapped and b.number(left) is not None and b.number(right) is None:
            turned = Node(n.name, n.domain, n.type, [right, left], n.outputs, {}, n.scope, n.field)
            binary(b, turned, f"aten.{swapped}.Tensor", attributes)
        else:
            binary(b, n, f"aten.{name}.Tensor", attributes)

    return Rule(translate, f"aten.{name}.Tensor")


def _sub(b: Builder, n: Node) -> None:
    value = b.number(n.inputs[0])
    if value is not None and b.number(n.inputs[1]) is None:
        b.emit(
            "aten.rsub.Scalar", [("self", n.inputs[1])], {"other": value, "alpha": 1}, n.outputs, n
        )
    else:
        binary(b, n, "aten.sub.Tensor", {"alpha": 1})


def _div(b: Builder, n: Node) -> None:
    left, right = n.inputs
    value = b.number(left)
    if not b.program.values[left].is_float:
        binary(b, n, "aten.div.Tensor_mode", {"rounding_mode": "trunc"})
    elif value is None or b.number(right) is not None:
        binary(b, n, "aten.div.Tensor", {})
    elif value == 1.0:
        b.emit("aten.reciprocal.default", [("self", right)], {}, n.outputs, n)
    else:
        inverse = b.temporary(b.shape(right), b.dtype(right))
        b.emit("aten.reciprocal.default", [("self", right)], {}, [inverse], n)
        b.emit("aten.mul.Tensor", [("self", inverse)], {"other": value}, n.outputs, n)


def _pow(b: Builder, n: Node) -> None:
    base, exponent = n.inputs
    value = b.number(exponent)
    if value is not None:
        kind, attributes = "aten.pow.Tensor_Scalar", {"exponent": value}
        b.emit(kind, [("self", base)], attributes, n.outputs, n)
    elif b.number(base) is not None:
        raise NotTranslated("a number to the power of a tensor")
    else:
        arguments = [("self", base), ("exponent", exponent)]
        b.emit("aten.pow.Tensor_Tensor", arguments, {}, n.outputs, n)


def _folded(kind: str, **attributes: Any) -> Rule:
    """Returns a rule for any number of tensors (Sum, Max, Min): one after another."""

    def translate(b: Builder, n: Node) -> None:
        name = n.inputs[0]
        for place, other in enumerate(n.inputs[1:], start=2):
            last = place == len(n.inputs)
            shape = b.shape(n.outputs[0])
            out = n.outputs[0] if last else b.temporary(shape, b.dtype(n.outputs[0]))
            b.emit(kind, [("self", name), ("other", other)], attributes, [out], n)
            name = out

    return Rule(translate, kind)


def _where(b: Builder, n: Node) -> None:
    condition, yes, no = n.inputs
    arguments: list[Argument] = [("condition", condition)]
    attributes: dict[str, Any] = {}
    form = {(True, True): "Scalar", (True, False): "ScalarSelf", (False, True): "ScalarOther"}
    numbers = (b.number(yes), b.number(no))
    for role, name, value in (("self", yes, numbers[0]), ("other", no, numbers[1])):
        if value is None:
            arguments.append((role, name))
        else:
            attributes[role] = value
    kind = form.get((numbers[0] is not None, numbers[1] is not None), "self")
    b.emit(f"aten.where.{kind}", arguments, attributes, n.outputs, n)


def _clip(b: Builder, n: Node) -> None:
    given: dict[str, Any] = {}
    for place, name in ((1, "min"), (2, "max")):
        given[name] = n.attributes.get(name)
        if n.input(place):
            given[name] = b.number(n.input(place))
            if given[name] is None:
                raise NotTranslated("limits that are tensors")
    b.emit("aten.clamp.default", [("self", n.inputs[0])], given, n.outputs, n)


def cast(b: Builder, n: Node, source: str, out: str) -> None:
    """Emits a change of type."""
    attributes = {"dtype": b.dtype(out), "non_blocking": False, "copy": False}
    b.emit("aten.to.dtype", [("self", source)], attributes, [out], n)


def _dropout(b: Builder, n: Node) -> None:
    # The graph is of a training step: what a file would drop in training is dropped.
    if any(b.program.consumers.get(name) for name in n.outputs[1:] if name):
        raise NotTranslated("a dropout whose mask is read")
    attributes = {"p": dropout_ratio(n, b.program), "train": True}
    b.emit("aten.dropout.default", [("input", n.inputs[0])], attributes, n.outputs[:1], n)


def _prelu(b: Builder, n: Node) -> None:
    slope = n.inputs[1]
    elements = b.program.values[slope].elements
    channels = b.shape(n.inputs[0])[1] if b.rank(n.inputs[0]) > 1 else 1
    if not b.is_weight(slope) or elements not in (1, channels):
        raise NotTranslated("slopes that are not one per channel")
    b.store(slope, (elements,))
    b.emit("aten.prelu.default", [("self", n.inputs[0]), ("weight", slope)], {}, n.outputs, n)


def _gelu(b: Builder, n: Node) -> None:
    attributes = {"approximate": n.attributes.get("approximate", "none")}
    b.emit("aten.gelu.default", [("self", n.inputs[0])], attributes, n.outputs, n)


def _default(*names: str) -> dict[str, str]:
    return {name: f"aten.{name}.default" for name in names}


_UNARY = {
    "Relu": "relu", "Sigmoid": "sigmoid", "Tanh": "tanh", "Exp": "exp", "Log": "log",
    "Sqrt": "sqrt", "Reciprocal": "reciprocal", "Neg": "neg", "Abs": "abs", "Floor": "floor",
    "Ceil": "ceil", "Round": "round", "Sign": "sign", "Sin": "sin", "Cos": "cos", "Tan": "tan",
    "Erf": "erf", "Not": "logical_not", "IsNaN": "isnan", "IsInf": "isinf", "Mish": "mish",
    "HardSwish": "hardswish", "Asin": "asin", "Acos": "acos", "Atan": "atan", "Sinh": "sinh",
    "Cosh": "cosh", "Asinh": "asinh", "Acosh": "acosh", "Atanh": "atanh",
    "BitwiseNot": "bitwise_not",
}  # fmt: skip

_COMPARED = {
    "Equal": "eq", "Less": "lt", "LessOrEqual": "le", "Greater": "gt", "GreaterOrEqual": "ge",
    "BitwiseAnd": "bitwise_and", "BitwiseOr": "bitwise_or", "BitwiseXor": "bitwise_xor",
}  # fmt: skip
_SWAPPED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "eq": "eq"}


def _logical(name: str) -> Rule:
    kind = f"aten.logical_{name}.default"

    def translate(b: Builder, n: Node) -> None:
        b.emit(kind, [("self", n.inputs[0]), ("other", n.inputs[1])], {}, n.outputs, n)

    return Rule(translate, kind)


RULES: dict[str, Rule] = {
    **{onnx: _unary(f"aten.{torch}.default") for onnx, torch in _UNARY.items()},
    **{o: _binary(t, _SWAPPED.get(t, "")) for o, t in _COMPARED.items()},
    **{name.capitalize(): _logical(name) for name in ("and", "or", "xor")},
    "Add": _binary("add", "add", alpha=1),
    "Mul": _binary("mul", "mul"),
    "Sub": Rule(_sub, "aten.sub.Tensor, aten.rsub.Scalar"),
    "Div": Rule(_div, "aten.div.Tensor, aten.reciprocal.default"),
    "Mod": _binary("remainder"),
    "Pow": Rule(_pow, "aten.pow.Tensor_Scalar, aten.pow.Tensor_Tensor"),
    "Sum": _folded("aten.add.Tensor", alpha=1),
    "Max": _folded("aten.maximum.default"),
    "Min": _folded("aten.minimum.default"),
    "Where": Rule(_where, "aten.where.self and its scalar forms"),
    "Clip": Rule(_clip, "aten.clamp.default"),
    "Cast": Rule(lambda b, n: cast(b, n, n.inputs[0], n.outputs[0]), "aten.to.dtype"),
    "CastLike": Rule(lambda b, n: cast(b, n, n.inputs[0], n.outputs[0]), "aten.to.dtype"),
    "Dropout": Rule(_dropout, "aten.dropout.default"),
    "PRelu": Rule(_prelu, "aten.prelu.default"),
    "Gelu": Rule(_gelu, "aten.gelu.default"),
    "Swish": _unary("aten.silu.default"),
    "Softplus": _unary("aten.softplus.default", beta=1, threshold=20),
    "Elu": _with("aten.elu.default", {"alpha": ("alpha", 1.0)}),
    "Celu": _with("aten.celu.default", {"alpha": ("alpha", 1.0)}),
    "Selu": _unary("aten.selu.default"),
    "LeakyRelu": _with("aten.leaky_relu.default", {"negative_slope": ("alpha", 0.01)}),
    "HardSigmoid": _unary("aten.hardsigmoid.default"),
    "Trilu": Rule(
        lambda b, n: b.emit(
            "aten.triu.default" if n.attributes.get("upper", 1) else "aten.tril.default",
            [("self", n.inputs[0])],
            {"diagonal": b.number(n.input(1)) or 0},
            n.outputs,
            n,
        ),
        "aten.triu.default, aten.tril.default",
    ),
}

FUSED: dict[str, Rule] = {
    "Silu": _unary("aten.silu.default"),
    "Gelu": _unary("aten.gelu.default", approximate="none"),
    "Rsqrt": _unary("aten.rsqrt.default"),
}
