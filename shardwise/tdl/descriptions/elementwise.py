"""Element-wise operators with broadcasting: one lambda describes them all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shardwise.tdl.language import TensorHandle, apply
from shardwise.tdl.registry import op, pointwise


def broadcast(*tensors: TensorHandle) -> Callable[..., Any]:
    """f(a[i], b[i], …) with numpy's broadcasting."""
    return lambda *i: apply(*(t.at(i) for t in tensors))


def _register(saves: tuple[str, ...], per_element: float, *kinds: str, note: str = "") -> None:
    op(*kinds, category="elementwise", saves=saves, flops=pointwise(per_element), note=note)(
        broadcast
    )


# What backward keeps follows PyTorch's derivatives (derivatives.yaml).
_register(
    (),
    1.0,
    "aten.add.Tensor",
    "aten.add.Scalar",
    "aten.add_.Tensor",
    "aten.sub.Tensor",
    "aten.sub.Scalar",
    "aten.rsub.Scalar",
    "aten.neg.default",
    "aten.mul.Scalar",
    "aten.div.Scalar",
    "aten.to.dtype",
    "aten.to.dtype_layout",
    "aten.to.device",
    "aten._to_copy.default",
    "aten.type_as.default",
    "aten.clone.default",
    "aten.contiguous.default",
    "aten.copy.default",
    "aten.detach.default",
    "aten.alias.default",
    "aten.lift_fresh_copy.default",
    "aten.zeros_like.default",
    "aten.ones_like.default",
    "aten.full_like.default",
    "aten.floor.default",
    "aten.round.default",
    "aten.sign.default",
)
_register(
    (),
    1.0,
    *(
        f"aten.{name}.{form}"
        for name in ("eq", "ne", "lt", "le", "gt", "ge")
        for form in ("Tensor", "Scalar")
    ),
    *(f"aten.{n}.default" for n in ("logical_and", "logical_or", "logical_not", "logical_xor")),
    *(f"aten.{n}.default" for n in ("bitwise_not", "isinf", "isnan")),
    *(f"aten.{n}.Tensor" for n in ("bitwise_and", "bitwise_or", "__and__", "__or__")),
    "aten.floor_divide.default",
    "aten.remainder.Scalar",
    "aten.remainder.Tensor",
)
_register(("*",), 1.0, "aten.mul.Tensor", "aten.div.Tensor", "aten.mul_.Tensor")
_register(("*",), 1.0, "aten.maximum.default", "aten.minimum.default", "aten.atan2.default")
_register(("condition",), 1.0, "aten.where.self", "aten.where.ScalarOther")
_register(("mask",), 1.0, "aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
_register(
    ("self",),
    1.0,
    "aten.pow.Tensor_Scalar",
    "aten.abs.default",
    "aten.log.default",
    "aten.log1p.default",
    "aten.square.default",
    "aten.clamp.default",
    "aten.clamp_min.default",
    "aten.hardtanh.default",
    "aten.leaky_relu.default",
    "aten.relu6.default",
)
_register(("self",), 4.0, "aten.sin.default", "aten.cos.default", "aten.erf.default")
_register(("*",), 4.0, "aten.pow.Tensor_Tensor")
_register(
    ("self",),
    8.0,
    "aten.gelu.default",
    "aten.silu.default",
    "aten.mish.default",
    "aten.softplus.default",
    "aten.elu.default",
    "aten.hardswish.default",
    "aten.log_sigmoid.default",
)
_register(
    ("output",),
    4.0,
    "aten.exp.default",
    "aten.sigmoid.default",
    "aten.tanh.default",
    "aten.rsqrt.default",
    "aten.sqrt.default",
    "aten.reciprocal.default",
)
_register(("output",), 1.0, "aten.relu.default", "aten.relu_.default")
_register(
    ("output",),
    2.0,
    "aten.dropout.default",
    "aten.native_dropout.default",
    "aten.feature_dropout.default",
    note="the output stands for the mask that is kept",
)
