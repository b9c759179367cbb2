"""Calls of further element-wise operators, of random numbers and of factories."""

from typing import Any

from shardwise.tdl.examples.cases import Given, case, give, one, two

_UNARY = (
    "positive negative deg2rad rad2deg frac data alias_copy detach_copy lift lift_fresh absolute "
    "isneginf isposinf isreal fix signbit erfc sinc sinh cosh angle asinh atan arctan arcsinh sgn "
    "exp2 hardshrink softshrink nan_to_num celu rand_like randn_like i0 special_erf special_erfc "
    "special_expit special_i0 special_ndtr special_log_ndtr special_erfcx "
    "special_ndtri special_i0e special_i1 special_i1e"
)
_SMALL = "asin acos atanh arcsin arccos arctanh erfinv"
"""Between -1 and 1: of a sine."""
_POSITIVE = "acosh arccosh lgamma digamma special_log1p special_entr"
_COMPARISONS = "less less_equal greater greater_equal not_equal"
_BITS = "bitwise_and bitwise_or bitwise_xor __and__ __or__ __xor__"
_SHIFTS = "bitwise_left_shift bitwise_right_shift"


def _backward(name: str, second: str, *, grad: str = "grad_output", **attributes: Any) -> Given:
    return case(f"{name}_backward.default", {grad: (4, 6), second: (4, 6)}, **attributes)


give(
    *(one(f"{name}.default", 4, 6) for name in _UNARY.split()),
    # NaN outside of the domain compares equal.
    *(one(f"{name}.default", 4, 6) for name in _SMALL.split()),
    *(one(f"{name}.default", 4, 6, positive=True) for name in _POSITIVE.split()),
    *(two(f"{name}.Tensor", (4, 6), (6,)) for name in _COMPARISONS.split()),
    *(one(f"{name}.Scalar", 4, 6, other=0.1) for name in _COMPARISONS.split()),
    *(
        two(f"{name}.Tensor", (4, 6), (6,), integers={"self": 8, "other": 8})
        for name in ("bitwise_xor", "__xor__", *_SHIFTS.split(), "__lshift__", "__rshift__")
    ),
    *(one(f"{name}.Scalar", 4, 6, integers={"self": 8}, other=3) for name in _BITS.split()),
    *(one(f"{n}.Tensor_Scalar", 4, 6, integers={"self": 8}, other=2) for n in _SHIFTS.split()),
    *(
        one(f"{n}.Scalar", 4, 6, integers={"self": 8}, other=2)
        for n in ("__lshift__", "__rshift__")
    ),
    *(one(f"_cast_{n}.default", 4, 6) for n in ("Byte", "Char", "Int", "Long", "Short")),
    two("subtract.Tensor", (4, 6), (6,)),
    one("subtract.Scalar", 4, 6, other=2.0),
    *(two(f"{n}.Tensor", (4, 6), (6,)) for n in ("multiply", "divide", "true_divide", "fmod")),
    *(one(f"{n}.Scalar", 4, 6, other=2.0) for n in ("multiply", "divide", "true_divide", "fmod")),
    two("divide.Tensor_mode", (4, 6), (6,), rounding_mode="trunc"),
    one("divide.Scalar_mode", 4, 6, other=2.0, rounding_mode="floor"),
    one("floor_divide.Scalar", 4, 6, other=2.0),
    case("remainder.Scalar_Tensor", {"other": (4, 6)}, self=2.0),
    case("lerp.Scalar", {"self": (4, 6), "end": (6,)}, weight=0.3),
    one("fill.Scalar", 4, 6, value=2.0),
    case("fill.Tensor", {"self": (4, 6), "value": ()}),
    two("to.other", (4, 6), (2, 3)),
    one("to.dtype_layout", 4, 6, dtype="float32"),
    one("to.device", 4, 6, device="cpu", dtype="float32"),
    one("randint_like.default", 4, 6, high=9),
    one("randint_like.low_dtype", 4, 6, low=1, high=9),
    *(one(f"{n}.default", 4, 6, size=[4, 6]) for n in ("new_zeros", "new_ones")),
    one("new_zeros.default", 4, 6, size=[2, 12]),
    one("new_full.default", 4, 6, size=[4, 6], fill_value=2.0),
    *(two(f"{n}.default", (4, 6), (6,)) for n in ("isclose", "nextafter")),
    *(two(f"{n}.default", (4, 6), (6,), integers={"self": 8, "other": 8}) for n in ("gcd", "lcm")),
    case("heaviside.default", {"self": (4, 6), "values": (6,)}),
    two("special_xlog1py.default", (4, 6), (6,), positive=True),
    one("round.decimals", 4, 6, decimals=1),
    case("isin.Tensor_Scalar", {"elements": (4, 6)}, {"elements": 4}, test_element=1),
    *(two(f"{n}.default", (4, 6), (6,)) for n in ("fmax", "fmin", "arctan2")),
    case("atan2.out", {"self": (4, 6), "other": (6,), "out": (4, 6)}),
    *(two(f"{n}.default", (4, 6), (6,)) for n in ("logaddexp", "logaddexp2", "hypot")),
    two("xlogy.Tensor", (4, 6), (6,), positive=True),
    one("xlogy.Scalar_Other", 4, 6, other=2.0),
    case("xlogy.Scalar_Self", {"other": (4, 6)}, positive=True, self=2.0),
    *(case(f"{n}.Tensor", {"self": (4, 6), "min": (6,), "max": (6,)}) for n in ("clamp", "clip")),
    case("clamp_max.Tensor", {"self": (4, 6), "max": (6,)}),
    case("clamp_min.Tensor", {"self": (4, 6), "min": (6,)}),
    one("clip.default", 4, 6, min=-0.5, max=0.5),
    case("pow.Scalar", {"exponent": (4, 6)}, self=2.0),
    case("float_power.Scalar", {"exponent": (4, 6)}, self=2.0),
    one("float_power.Tensor_Scalar", 4, 6, exponent=2.0),
    case("float_power.Tensor_Tensor", {"self": (4, 6), "exponent": (6,)}, positive=True),
    two("copysign.Tensor", (4, 6), (6,)),
    one("copysign.Scalar", 4, 6, other=-1.0),
    one("threshold.default", 4, 6, threshold=0.1, value=2.0),
    one("logit.default", 4, 6, eps=0.1),
    one("mvlgamma.default", 4, 6, positive=True, p=1),
    one("polygamma.default", 4, 6, positive=True, n=1),
    one("rrelu.default", 4, 6, training=False),
    case("alpha_dropout.default", {"input": (4, 6)}, p=0.5, train=True),
    case("feature_alpha_dropout.default", {"input": (4, 6, 2)}, p=0.0, train=True),
    case("dropout.default", {"input": (4, 6)}, p=0.5, train=True),
    case("_prelu_kernel.default", {"self": (4, 6, 8), "weight": (6, 1)}),
    # gradients of activations
    _backward("gelu", "self"),
    _backward("silu", "self"),
    _backward("mish", "self"),
    _backward("sigmoid", "output"),
    _backward("tanh", "output"),
    _backward("threshold", "self", threshold=0.0),
    _backward("elu", "self_or_result", alpha=1.0, scale=1.0, input_scale=1.0, is_result=False),
    _backward("softplus", "self", beta=1.0, threshold=20.0),
    _backward("leaky_relu", "self", negative_slope=0.1, self_is_result=False),
    _backward("hardtanh", "self", min_val=-1.0, max_val=1.0),
    _backward("hardsigmoid", "self"),
    _backward("hardswish", "self"),
    _backward("hardshrink", "self", grad="grad_out", lambd=0.5),
    _backward("softshrink", "self", lambd=0.5),
    _backward("logit", "self", eps=0.1),
    case(
        "native_dropout_backward.default",
        {"grad_output": (4, 6), "mask": (4, 6)},
        {"mask": 2},
        scale=2.0,
    ),
    # random numbers, the same at every call
    one("bernoulli.p", 4, 6, p=0.5),
    case("bernoulli.default", {"self": (4, 6)}, given={"self": [[0.3] * 6] * 4}),
    case("bernoulli.Tensor", {"self": (4, 6), "p": (4, 6)}, given={"p": [[0.3] * 6] * 4}),
    *(one(f"{n}.default", 4, 6) for n in ("exponential", "log_normal", "cauchy", "uniform")),
    case(
        "binomial.default",
        {"count": (4, 6), "prob": (4, 6)},
        given={n: [[v] * 6] * 4 for n, v in (("count", 5.0), ("prob", 0.3))},
    ),
    one("geometric.default", 4, 6, p=0.5),
    one("normal_functional.default", 4, 6),
    case("normal.Tensor_float", {"mean": (4, 6)}, std=2.0),
    case("normal.float_Tensor", {"std": (4, 6)}, positive=True, mean=1.0),
    case("normal.Tensor_Tensor", {"mean": (4, 6), "std": (4, 6)}, positive=True),
    # no inputs that are read
    *(case(f"{n}.default", {}, size=[4, 6]) for n in ("ones", "zeros", "rand", "randn")),
    case("full.default", {}, size=[4, 6], fill_value=2.0),
    case("scalar_tensor.default", {}, s=2.0),
    case("arange.default", {}, end=12),
    case("arange.start", {}, start=2, end=12),
    case("arange.start_step", {}, start=2, end=12, step=2),
    case("range.default", {}, start=2, end=12),
    case("range.step", {}, start=2, end=12, step=2),
    case("eye.default", {}, n=6),
    case("eye.m", {}, n=6, m=4),
    case("linspace.default", {}, start=0, end=1, steps=6),
    case("logspace.default", {}, start=0, end=1, steps=6),
    case("randint.default", {}, high=9, size=[4, 6]),
    case("randint.low", {}, low=1, high=9, size=[4, 6]),
    case("normal.float_float", {}, mean=0.0, std=1.0, size=[4, 6]),
    case("fft_fftfreq.default", {}, n=6),
    case("fft_rfftfreq.default", {}, n=6),
    *(case(f"{n}_indices.default", {}, row=4, col=6) for n in ("tril", "triu")),
    *(
        case(f"{n}_window.default", {}, window_length=8)
        for n in ("hann", "hamming", "blackman", "bartlett")
    ),
    case("hann_window.periodic", {}, window_length=8, periodic=True),
)
