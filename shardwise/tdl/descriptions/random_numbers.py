"""Random numbers by element: every device draws those of its share."""

from __future__ import annotations

from shardwise.tdl.describe import op, pointwise
from shardwise.tdl.descriptions.elementwise import broadcast

op(
    *(f"aten.{name}.default" for name in ("bernoulli", "exponential", "geometric", "log_normal")),
    *(f"aten.{name}.default" for name in ("normal_functional", "uniform", "cauchy", "poisson")),
    *(f"aten.normal.{form}" for form in ("Tensor_Tensor", "Tensor_float", "float_Tensor")),
    *(f"aten.randint_like.{form}" for form in ("default", "low_dtype")),
    "aten.bernoulli.p",
    "aten.bernoulli.Tensor",
    "aten.binomial.default",
    category="elementwise",
    saves=(),
    flops=pointwise(4.0),
)(broadcast)
op(
    "aten._standard_gamma.default",
    category="elementwise",
    saves=("self", "output"),
    flops=pointwise(4.0),
)(broadcast)
