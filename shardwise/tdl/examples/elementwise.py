"""Calls of the operators in `descriptions.elementwise`."""

from shardwise.tdl.examples.cases import case, give, one, two

_UNARY = (
    "neg abs log1p square sin cos tan erf exp expm1 sigmoid tanh gelu silu mish softplus elu selu "
    "hardswish hardsigmoid hardtanh relu relu6 relu_ leaky_relu log_sigmoid floor ceil round trunc "
    "sign isinf isnan isfinite clone contiguous detach alias lift_fresh_copy _to_copy "
    "zeros_like ones_like"
)
_POSITIVE = "log log2 log10 sqrt rsqrt reciprocal"
_COMPARISONS = "eq ne lt le gt ge"
_LOGICAL = "logical_and logical_or logical_xor"


give(
    *(one(f"{name}.default", 4, 6) for name in _UNARY.split()),
    *(one(f"{name}.default", 4, 6, positive=True) for name in _POSITIVE.split()),
    *(two(f"{name}.Tensor", (4, 6, 8), (6, 1)) for name in ("add", "sub", "rsub", "mul", "div")),
    *(one(f"{name}.Scalar", 4, 6, other=2.0) for name in ("add", "sub", "rsub", "mul", "div")),
    *(one(f"{name}.Tensor", 4, 6, other=2.0) for name in ("mul", "div")),
    *(two(f"{name}_.Tensor", (4, 6), (6,)) for name in ("add", "mul", "div")),
    *(two(f"{name}.Tensor", (4, 6), (6,)) for name in _COMPARISONS.split()),
    *(one(f"{name}.Scalar", 4, 6, other=0.1) for name in _COMPARISONS.split()),
    *(two(f"{name}.default", (4, 6), (6,)) for name in _LOGICAL.split()),
    *(two(f"{name}.default", (4, 6), (6,)) for name in ("maximum", "minimum", "atan2")),
    *(two(f"{name}.other", (4, 6), (4, 1)) for name in ("max", "min")),
    *(
        two(f"{name}.Tensor", (4, 6), (6,), integers={"self": 8, "other": 8})
        for name in ("bitwise_and", "bitwise_or", "__and__", "__or__")
    ),
    one("logical_not.default", 4, 6, integers={"self": 2}),
    one("bitwise_not.default", 4, 6, integers={"self": 8}),
    one("floor_divide.default", 4, 6, other=2.0),
    one("remainder.Scalar", 4, 6, other=2.0),
    two("remainder.Tensor", (4, 6), (6,)),
    two("div.Tensor_mode", (4, 6), (6,), rounding_mode="floor"),
    one("div.Scalar_mode", 4, 6, other=2.0, rounding_mode="floor"),
    case("addcmul.default", {"self": (4, 6), "tensor1": (4, 6), "tensor2": (6,)}),
    case("addcdiv.default", {"self": (4, 6), "tensor1": (4, 6), "tensor2": (6,)}),
    case("lerp.Tensor", {"self": (4, 6), "end": (4, 6), "weight": (6,)}),
    case(
        "where.self",
        {"condition": (4, 1), "self": (4, 6), "other": (6,)},
        {"condition": 2},
    ),
    case("where.ScalarOther", {"condition": (4, 6), "self": (4, 6)}, {"condition": 2}, other=0.5),
    case("where.ScalarSelf", {"condition": (4, 6), "other": (4, 6)}, {"condition": 2}, self=0.5),
    case("where.Scalar", {"condition": (4, 6)}, {"condition": 2}, self=0.5, other=2.0),
    case("masked_fill.Scalar", {"self": (4, 6), "mask": (6,)}, {"mask": 2}, value=0.0),
    case("masked_fill.Tensor", {"self": (4, 6), "mask": (6,), "value": ()}, {"mask": 2}),
    one("pow.Tensor_Scalar", 4, 6, exponent=2),
    case("pow.Tensor_Tensor", {"self": (4, 6), "exponent": (6,)}, positive=True),
    one("clamp.default", 4, 6, min=-0.5),
    one("clamp_min.default", 4, 6, min=0.0),
    one("clamp_max.default", 4, 6, max=0.0),
    one("full_like.default", 4, 6, fill_value=2.0),
    case("copy.default", {"self": (4, 6), "src": (4, 6)}),
    two("type_as.default", (4, 6), (2, 3)),
    one("to.dtype", 4, 6, dtype="float32"),
    case("prelu.default", {"self": (4, 6, 8), "weight": (6,)}),
    one("one_hot.default", 4, 6, integers={"self": 2}, num_classes=3),
    case("dropout.default", {"input": (4, 6)}, p=0.0, train=True),
    case("dropout.default", {"input": (4, 6)}, p=0.5, train=False),
    case("feature_dropout.default", {"input": (4, 6)}, p=0.0, train=True),
    case("native_dropout.default", {"input": (4, 6)}, p=0.0, train=True),
    one("tril.default", 4, 6),
    one("triu.default", 4, 6),
)
