"""Element-wise operators with broadcasting: one lambda describes them all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shardwise.tdl.describe import Call, Flops, Saves, not_differentiated, op, pointwise
from shardwise.tdl.language import Constant, TensorHandle, apply


def broadcast(*tensors: TensorHandle) -> Callable[..., Any]:
    """y[i] = f(a[i], b[i], …) with numpy's broadcasting"""
    return lambda *i: apply(*(t.at(i) for t in tensors))


def like_first(*tensors: TensorHandle, out: tuple[int, ...]) -> Callable[..., Any]:
    """y[i] = f(x[i]); another tensor only lends its type or shape"""
    if out != tensors[0].shape:
        return lambda *i: Constant(0.0)
    return lambda *i: apply(tensors[0].at(i), *(t[()] for t in tensors[1:] if not t.shape))


def _register(saves: Saves, flops: Flops, *kinds: str, note: str = "") -> None:
    op(*kinds, category="elementwise", saves=saves, flops=flops, note=note)(broadcast)


def _default(*names: str) -> tuple[str, ...]:
    return tuple(f"aten.{name}.default" for name in names)


def _product_saves(call: Call) -> set[str]:
    """Each factor is kept for the gradient of the other one; a number has no gradient."""
    if "other" not in call.shapes:
        return set()
    needed_by = {"self": "other", "other": "self"}
    return {kept for kept, wants in needed_by.items() if wants in call.differentiable}


def _quotient_saves(call: Call) -> set[str]:
    """The divisor for both gradients, the dividend for the divisor's."""
    if "other" not in call.shapes:
        return set()
    return {"self", "other"} if "other" in call.differentiable else {"other"}


def _mask_saves(call: Call) -> tuple[str, ...]:
    """Nothing where nothing is dropped."""
    drops = call.attributes.get("p", 0.5) and call.attributes.get("train", True)
    return ("output",) if drops else ()


# What backward keeps follows PyTorch's derivatives (derivatives.yaml), and is tested against what
# autograd really saves.
_register(
    (),
    pointwise(1.0),
    *(f"aten.{name}.{form}" for name in ("add", "sub", "rsub") for form in ("Tensor", "Scalar")),
    "aten.add_.Tensor",
    "aten.mul.Scalar",
    "aten.div.Scalar",
    "aten.to.dtype",
    "aten.to.dtype_layout",
    "aten.to.device",
    *_default("neg", "_to_copy", "clone", "contiguous", "copy", "detach", "alias"),
    *_default("lift_fresh_copy", "lift", "lift_fresh", "alias_copy", "detach_copy", "positive"),
    *_default("negative", "deg2rad", "rad2deg", "frac", "data"),
    *(f"aten.{name}.{form}" for name in ("subtract",) for form in ("Tensor", "Scalar")),
    *(f"aten.{name}.Scalar" for name in ("multiply", "divide", "true_divide", "fmod")),
    "aten.lerp.Scalar",
    "aten.fill.Scalar",
)
op(
    "aten.type_as.default",
    "aten.to.other",
    *_default("zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like"),
    *_default("new_zeros", "new_ones", "new_full", "new_empty"),
    "aten.fill.Tensor",
    category="elementwise",
    saves=(),
    flops=pointwise(1.0),
)(like_first)
_register(
    (),
    not_differentiated,
    *(
        f"aten.{name}.{form}"
        for name in (
            *("eq", "ne", "lt", "le", "gt", "ge", "less", "less_equal"),
            *("greater", "greater_equal", "not_equal"),
        )
        for form in ("Tensor", "Scalar")
    ),
    *_default("logical_and", "logical_or", "logical_not", "logical_xor"),
    *_default("bitwise_not", "isinf", "isnan", "isfinite", "isneginf", "isposinf", "isreal"),
    *_default("floor", "ceil", "round", "trunc", "fix", "sign", "signbit", "heaviside"),
    *_default("isclose", "gcd", "lcm"),
    *(
        f"aten.{name}.{form}"
        for name in ("bitwise_and", "bitwise_or", "bitwise_xor", "__and__", "__or__", "__xor__")
        for form in ("Tensor", "Scalar")
    ),
    *(f"aten.{n}.Tensor" for n in ("bitwise_left_shift", "bitwise_right_shift")),
    *(f"aten.{n}.Tensor_Scalar" for n in ("bitwise_left_shift", "bitwise_right_shift")),
    *(f"aten.{n}.{f}" for n in ("__lshift__", "__rshift__") for f in ("Tensor", "Scalar")),
    *(f"aten._cast_{n}.default" for n in ("Byte", "Char", "Int", "Long", "Short")),
    "aten.round.decimals",
    "aten.isin.Tensor_Scalar",
    "aten.floor_divide.default",
    "aten.floor_divide.Scalar",
    "aten.remainder.Scalar_Tensor",
    "aten.divide.Scalar_mode",
    "aten.remainder.Scalar",
    "aten.div.Scalar_mode",
)
_register(
    _product_saves,
    pointwise(1.0),
    "aten.mul.Tensor",
    "aten.mul_.Tensor",
    "aten.multiply.Tensor",
    note="keeps each factor that the other one's gradient needs",
)
_register(
    _quotient_saves,
    pointwise(1.0),
    "aten.div.Tensor",
    "aten.div_.Tensor",
    "aten.divide.Tensor",
    "aten.true_divide.Tensor",
    note="keeps both, or nothing where it divides by a number",
)
_register(
    ("*",),
    pointwise(1.0),
    *_default("maximum", "minimum", "fmax", "fmin", "atan2", "arctan2"),
    *_default("logaddexp", "logaddexp2"),
    *(f"aten.xlogy.{form}" for form in ("Tensor", "Scalar_Other", "Scalar_Self")),
    *(f"aten.{name}.Tensor" for name in ("clamp", "clip", "clamp_max", "clamp_min", "fmod")),
    "aten.max.other",
    "aten.min.other",
)
_register(("tensor1", "tensor2"), pointwise(2.0), *_default("addcmul", "addcdiv"))
_register(("*",), pointwise(2.0), "aten.lerp.Tensor")
# Their gradients are zero almost everywhere, but autograd keeps both.
_register(
    ("*",),
    not_differentiated,
    "aten.div.Tensor_mode",
    "aten.divide.Tensor_mode",
    "aten.remainder.Tensor",
    "aten.nextafter.default",
)
_register(("self", "output"), pointwise(1.0), "aten.copysign.Tensor")
_register(
    ("condition",),
    pointwise(1.0),
    *(f"aten.where.{form}" for form in ("self", "ScalarOther", "ScalarSelf", "Scalar")),
)
_register(("*",), pointwise(2.0), "aten._prelu_kernel.default")
_register(("mask",), pointwise(1.0), "aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
_register(
    ("self",),
    pointwise(1.0),
    "aten.pow.Tensor_Scalar",
    *_default("abs", "log", "log1p", "log2", "log10", "square", "clamp", "clamp_min", "clamp_max"),
    *_default("hardtanh", "hardsigmoid", "leaky_relu", "relu6", "clip", "absolute"),
    *_default("threshold", "hardshrink", "softshrink", "nan_to_num"),
    "aten.float_power.Tensor_Scalar",
)
_register(
    ("self",),
    pointwise(4.0),
    *_default("sin", "cos", "erf", "erfc", "erfinv", "sinc", "sinh", "cosh", "angle"),
    *_default("asin", "acos", "atan", "asinh", "acosh", "atanh", "digamma", "lgamma", "i0"),
    *_default("arcsin", "arccos", "arctan", "arcsinh", "arccosh", "arctanh", "logit"),
    "aten.mvlgamma.default",
    "aten.special_erf.default",
    "aten.special_erfc.default",
    "aten.special_log1p.default",
    "aten.special_i0.default",
    "aten.special_entr.default",
    "aten.special_ndtr.default",
)
_register(
    ("self",),
    pointwise(8.0),
    "aten.polygamma.default",
    *(f"aten.special_{name}.default" for name in ("ndtri",)),
)
_register(
    ("self", "output"),
    pointwise(8.0),
    *(f"aten.special_{n}.default" for n in ("erfcx", "i0e", "i1", "i1e")),
)
_register(("*",), pointwise(2.0), "aten.special_xlog1py.default")
_register(
    ("*", "output"),
    pointwise(4.0),
    "aten.pow.Tensor_Tensor",
    "aten.pow.Scalar",
    "aten.float_power.Tensor_Tensor",
    "aten.float_power.Scalar",
    "aten.copysign.Scalar",
    "aten.hypot.default",
    "aten.sgn.default",
)
_register(
    ("self",),
    pointwise(8.0),
    *_default("gelu", "silu", "mish", "softplus", "elu", "selu", "celu", "hardswish"),
    *_default("log_sigmoid"),
)
_register(
    ("output",),
    pointwise(4.0),
    *_default("exp", "exp2", "expm1", "sigmoid", "tanh", "tan", "rsqrt", "sqrt", "reciprocal"),
)
_register(("output",), pointwise(1.0), "aten.relu.default", "aten.relu_.default")
_register(("output",), pointwise(4.0), "aten.special_expit.default")
_register(("self", "output"), pointwise(8.0), "aten.special_log_ndtr.default")
_register(
    ("self", "output"),
    pointwise(2.0),
    "aten.rrelu.default",
    note="the output is counted in place of the kept noise",
)
_register(
    _mask_saves,
    pointwise(2.0),
    *_default("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"),
    note="the output is counted in place of the kept mask; nothing where nothing is dropped",
)


@op("aten.atan2.out", category="elementwise", saves=("self", "other"), flops=pointwise(1.0))
def atan2_into(self: TensorHandle, other: TensorHandle, out: TensorHandle) -> Callable[..., Any]:
    """y[i] = atan2(a[i], b[i]), written over a third tensor"""
    return broadcast(self, other)


@op("aten.native_dropout.default", category="elementwise", saves=("output.1",))
def native_dropout(input: TensorHandle) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """y[i], mask[i] = f(x[i])"""
    return broadcast(input), broadcast(input)


# Gradients of activations, where a graph was exported with its backward.
_register(
    (),
    pointwise(4.0),
    *(
        f"aten.{name}_backward.default"
        for name in (
            *("gelu", "silu", "mish", "sigmoid", "tanh", "threshold", "elu", "softplus"),
            *("leaky_relu", "hardtanh", "hardsigmoid", "hardswish", "hardshrink", "softshrink"),
            *("logit", "native_dropout"),
        )
    ),
)


@op("aten.prelu.default", category="elementwise", saves=("self", "weight"), flops=pointwise(2.0))
def prelu(self: TensorHandle, weight: TensorHandle) -> Callable[..., Any]:
    """y[b, c, …] = f(x[b, c, …], w[c])"""
    shared = weight.shape[0] == 1 or self.rank < 2
    return lambda *i: apply(self[i], weight[0 if shared else i[1]])


@op("aten.one_hot.default", category="light", saves=(), flops=not_differentiated)
def one_hot(self: TensorHandle) -> Callable[..., Any]:
    """y[…, c] = [x[…] = c]"""
    return lambda *i: apply(self[i[:-1]])
