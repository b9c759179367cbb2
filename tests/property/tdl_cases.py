"""One small call, or several, of every operator that has a TDL description.

Whole numbers and truth values among the inputs are marked in `integers` with their upper bound;
all other inputs are floating point.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Case:
    kind: str
    shapes: dict[str, tuple[int, ...]]
    attributes: dict[str, Any] = field(default_factory=dict)
    integers: dict[str, int] = field(default_factory=dict)
    positive: bool = False


def _case(
    kind: str,
    shapes: dict[str, tuple[int, ...]],
    integers: dict[str, int] | None = None,
    positive: bool = False,
    **attributes: Any,
) -> Case:
    return Case(f"aten.{kind}", shapes, attributes, integers or {}, positive)


def _one(kind: str, *shape: int, **attributes: Any) -> Case:
    return _case(kind, {"self": shape}, **attributes)


def _two(kind: str, a: tuple[int, ...], b: tuple[int, ...], **attributes: Any) -> Case:
    return _case(kind, {"self": a, "other": b}, **attributes)


_UNARY = (
    "neg abs log1p square sin cos tan erf exp expm1 sigmoid tanh gelu silu mish softplus elu selu "
    "hardswish hardsigmoid hardtanh relu relu6 relu_ leaky_relu log_sigmoid floor ceil round trunc "
    "sign isinf isnan isfinite clone contiguous detach alias lift_fresh_copy _to_copy "
    "zeros_like ones_like"
)
_POSITIVE = "log log2 log10 sqrt rsqrt reciprocal"
_COMPARISONS = "eq ne lt le gt ge"
_LOGICAL = "logical_and logical_or logical_xor"
_FACTORS = {"input": (4, 6, 8), "weight": (10, 8)}

CASES: tuple[Case, ...] = (
    # products
    _case("linear.default", _FACTORS),
    _case("linear.default", {**_FACTORS, "bias": (10,)}),
    _case("mm.default", {"self": (4, 6), "mat2": (6, 8)}),
    _case("bmm.default", {"self": (2, 4, 6), "mat2": (2, 6, 8)}),
    _case("addmm.default", {"self": (8,), "mat1": (4, 6), "mat2": (6, 8)}),
    _case("baddbmm.default", {"self": (2, 4, 8), "batch1": (2, 4, 6), "batch2": (2, 6, 8)}),
    _two("matmul.default", (2, 4, 6, 8), (8, 10)),
    _two("matmul.default", (2, 4, 6, 8), (4, 8, 2)),
    _two("matmul.default", (2, 1, 6, 8), (4, 8, 2)),
    _two("matmul.default", (6, 8), (8,)),
    _two("matmul.default", (8,), (2, 8, 4)),
    _two("matmul.default", (8,), (8,)),
    _case(
        "einsum.default", {"tensors.0": (2, 4, 6), "tensors.1": (2, 6, 8)}, equation="bij,bjk->bik"
    ),
    _case("einsum.default", {"tensors.0": (4, 6), "tensors.1": (6, 8)}, equation="ij,jk->k"),
    _case("einsum.default", {"tensors.0": (4, 6)}, equation="ij->ji"),
    # windows
    _case("conv1d.default", {"input": (4, 6, 36), "weight": (8, 6, 5)}),
    _case("conv1d.default", {"input": (4, 6, 32), "weight": (8, 6, 3), "bias": (8,)}, padding=[1]),
    _case("conv1d.default", {"input": (2, 4, 16), "weight": (4, 2, 3)}, padding=[1], groups=2),
    _case("conv1d.default", {"input": (2, 16, 8), "weight": (16, 4, 1)}, groups=4),
    _case("conv1d.default", {"input": (2, 8, 8), "weight": (8, 1, 3)}, padding=[1], groups=8),
    _case("conv1d.default", {"input": (2, 8, 8), "weight": (16, 1, 3)}, padding=[1], groups=8),
    _case("conv2d.default", {"input": (4, 6, 8, 12), "weight": (8, 6, 3, 3)}, padding=[1, 1]),
    _case(
        "conv2d.default",
        {"input": (2, 4, 16, 16), "weight": (8, 4, 3, 3)},
        padding=[1, 1],
        stride=[2, 2],
    ),
    _case(
        "conv2d.default",
        {"input": (2, 4, 24, 14), "weight": (8, 4, 3, 3)},
        padding=[2, 2],
        dilation=[2, 2],
    ),
    _case("conv2d.default", {"input": (2, 4, 7, 7), "weight": (8, 4, 3, 3)}, padding=[1, 1]),
    _case("conv2d.default", {"input": (2, 4, 17, 17), "weight": (8, 4, 3, 3)}, stride=[2, 2]),
    _case(
        "conv3d.default", {"input": (2, 4, 8, 4, 4), "weight": (6, 4, 3, 1, 1)}, padding=[1, 0, 0]
    ),
    _case("conv1d.padding", {"input": (2, 4, 16), "weight": (6, 4, 4)}, padding="same"),
    _case("conv2d.padding", {"input": (2, 4, 10, 10), "weight": (6, 4, 3, 3)}, padding="valid"),
    _case("conv3d.padding", {"input": (2, 4, 8, 4, 4), "weight": (6, 4, 3, 1, 1)}, padding="same"),
    _one("max_pool1d.default", 4, 6, 16, kernel_size=[2]),
    _one("max_pool2d.default", 4, 6, 8, 8, kernel_size=[2, 2]),
    _one("max_pool2d.default", 2, 4, 16, 16, kernel_size=[3, 3], stride=[2, 2], padding=[1, 1]),
    _one("max_pool3d.default", 2, 4, 8, 8, 8, kernel_size=[2, 2, 2]),
    _one("avg_pool1d.default", 4, 6, 16, kernel_size=[4]),
    _one("avg_pool2d.default", 4, 6, 8, 8, kernel_size=[3, 3], stride=[1, 1], padding=[1, 1]),
    _one("avg_pool3d.default", 2, 4, 4, 4, 4, kernel_size=[2, 2, 2]),
    _one("adaptive_avg_pool1d.default", 4, 6, 12, output_size=[4]),
    _one("adaptive_avg_pool2d.default", 4, 6, 8, 8, output_size=[1, 1]),
    _one("adaptive_avg_pool2d.default", 4, 6, 8, 12, output_size=[4, 4]),
    # attention
    *(
        _case(
            "scaled_dot_product_attention.default",
            {"query": (2, 4, 6, 8), "key": (2, 4, 10, 8), "value": (2, 4, 10, 6), **mask},
        )
        for mask in ({}, {"attn_mask": (6, 10)}, {"attn_mask": (2, 1, 6, 10)})
    ),
    _case(
        "scaled_dot_product_attention.default",
        {"query": (2, 8, 6, 8), "key": (2, 2, 6, 8), "value": (2, 2, 6, 8)},
        enable_gqa=True,
        is_causal=True,
    ),
    # normalisations
    _case("layer_norm.default", {"input": (4, 6, 8)}, normalized_shape=[8]),
    _case(
        "layer_norm.default",
        {"input": (4, 6, 8), "weight": (6, 8), "bias": (6, 8)},
        normalized_shape=[6, 8],
    ),
    _case("rms_norm.default", {"input": (4, 6, 8), "weight": (8,)}, normalized_shape=[8]),
    *(
        _case(
            "batch_norm.default",
            {
                "input": (4, 6, 8, 4),
                "weight": (6,),
                "bias": (6,),
                "running_mean": (6,),
                "running_var": (6,),
            },
            positive=True,
            training=training,
            momentum=0.1,
            eps=1e-5,
            cudnn_enabled=False,
        )
        for training in (True, False)
    ),
    _case("group_norm.default", {"input": (4, 6, 8), "weight": (6,)}, num_groups=2),
    _one("softmax.int", 4, 6, 8, dim=-1),
    _one("_softmax.default", 4, 6, 8, dim=1, half_to_float=False),
    _one("log_softmax.int", 4, 6, 8, dim=0),
    _one("_log_softmax.default", 4, 6, dim=1, half_to_float=False),
    # losses; targets are in the first share of the classes, which alone must know them
    *(
        _case(
            "cross_entropy_loss.default",
            {"self": shape, "target": (shape[0], *shape[2:])},
            {"target": 2},
            reduction=reduction,
        )
        for shape in ((4, 8), (4, 8, 6))
        for reduction in (0, 1, 2)
    ),
    _case("nll_loss_nd.default", {"self": (4, 8, 6), "target": (4, 6)}, {"target": 2}),
    _case("nll_loss.default", {"self": (4, 8), "target": (4,)}, {"target": 2}),
    *(
        _case(f"{name}.default", {"self": (4, 6), "target": (4, 6)}, reduction=reduction)
        for name in (
            "mse_loss",
            "l1_loss",
            "smooth_l1_loss",
            "huber_loss",
            "binary_cross_entropy_with_logits",
        )
        for reduction in (0, 1)
    ),
    # element-wise
    *(_one(f"{name}.default", 4, 6) for name in _UNARY.split()),
    *(_one(f"{name}.default", 4, 6, positive=True) for name in _POSITIVE.split()),
    *(_two(f"{name}.Tensor", (4, 6, 8), (6, 1)) for name in ("add", "sub", "rsub", "mul", "div")),
    *(_one(f"{name}.Scalar", 4, 6, other=2.0) for name in ("add", "sub", "rsub", "mul", "div")),
    *(_one(f"{name}.Tensor", 4, 6, other=2.0) for name in ("mul", "div")),
    *(_two(f"{name}_.Tensor", (4, 6), (6,)) for name in ("add", "mul", "div")),
    *(_two(f"{name}.Tensor", (4, 6), (6,)) for name in _COMPARISONS.split()),
    *(_one(f"{name}.Scalar", 4, 6, other=0.1) for name in _COMPARISONS.split()),
    *(_two(f"{name}.default", (4, 6), (6,)) for name in _LOGICAL.split()),
    *(_two(f"{name}.default", (4, 6), (6,)) for name in ("maximum", "minimum", "atan2")),
    *(_two(f"{name}.other", (4, 6), (4, 1)) for name in ("max", "min")),
    *(
        _two(f"{name}.Tensor", (4, 6), (6,), integers={"self": 8, "other": 8})
        for name in ("bitwise_and", "bitwise_or", "__and__", "__or__")
    ),
    _one("logical_not.default", 4, 6, integers={"self": 2}),
    _one("bitwise_not.default", 4, 6, integers={"self": 8}),
    _one("floor_divide.default", 4, 6, other=2.0),
    _one("remainder.Scalar", 4, 6, other=2.0),
    _two("remainder.Tensor", (4, 6), (6,)),
    _two("div.Tensor_mode", (4, 6), (6,), rounding_mode="floor"),
    _one("div.Scalar_mode", 4, 6, other=2.0, rounding_mode="floor"),
    _case("addcmul.default", {"self": (4, 6), "tensor1": (4, 6), "tensor2": (6,)}),
    _case("addcdiv.default", {"self": (4, 6), "tensor1": (4, 6), "tensor2": (6,)}),
    _case("lerp.Tensor", {"self": (4, 6), "end": (4, 6), "weight": (6,)}),
    _case(
        "where.self",
        {"condition": (4, 1), "self": (4, 6), "other": (6,)},
        {"condition": 2},
    ),
    _case("where.ScalarOther", {"condition": (4, 6), "self": (4, 6)}, {"condition": 2}, other=0.5),
    _case("where.ScalarSelf", {"condition": (4, 6), "other": (4, 6)}, {"condition": 2}, self=0.5),
    _case("where.Scalar", {"condition": (4, 6)}, {"condition": 2}, self=0.5, other=2.0),
    _case("masked_fill.Scalar", {"self": (4, 6), "mask": (6,)}, {"mask": 2}, value=0.0),
    _case("masked_fill.Tensor", {"self": (4, 6), "mask": (6,), "value": ()}, {"mask": 2}),
    _one("pow.Tensor_Scalar", 4, 6, exponent=2),
    _case("pow.Tensor_Tensor", {"self": (4, 6), "exponent": (6,)}, positive=True),
    _one("clamp.default", 4, 6, min=-0.5),
    _one("clamp_min.default", 4, 6, min=0.0),
    _one("clamp_max.default", 4, 6, max=0.0),
    _one("full_like.default", 4, 6, fill_value=2.0),
    _case("copy.default", {"self": (4, 6), "src": (4, 6)}),
    _two("type_as.default", (4, 6), (2, 3)),
    _one("to.dtype", 4, 6, dtype="float32"),
    _case("prelu.default", {"self": (4, 6, 8), "weight": (6,)}),
    _one("one_hot.default", 4, 6, integers={"self": 2}, num_classes=3),
    _case("dropout.default", {"input": (4, 6)}, p=0.0, train=True),
    _case("dropout.default", {"input": (4, 6)}, p=0.5, train=False),
    _case("feature_dropout.default", {"input": (4, 6)}, p=0.0, train=True),
    _case("native_dropout.default", {"input": (4, 6)}, p=0.0, train=True),
    _one("tril.default", 4, 6),
    _one("triu.default", 4, 6),
    # views
    _one("view.default", 4, 6, 32, size=[4, 6, 8, 4]),
    _one("view.default", 4, 6, 8, size=[24, 8]),
    _one("reshape.default", 4, 6, 8, shape=[4, 48]),
    _one("reshape.default", 6, 4, shape=[4, 6]),
    _one("reshape.default", 12, 2, 1, shape=[3, 1, 4, 2]),
    _one("_unsafe_view.default", 4, 6, 8, size=[4, 1, 48]),
    _one("flatten.using_ints", 4, 6, 2, 2, start_dim=1, end_dim=-1),
    _one("unflatten.int", 4, 24, dim=1, sizes=[4, 6]),
    _one("squeeze.dim", 4, 1, 6, dim=1),
    _one("squeeze.dims", 4, 1, 6, dim=[1]),
    _one("squeeze.default", 4, 1, 6),
    _one("unsqueeze.default", 4, 6, dim=1),
    _two("view_as.default", (4, 6), (24,)),
    _one("transpose.int", 4, 6, 8, dim0=1, dim1=2),
    _one("swapaxes.default", 4, 6, 8, axis0=0, axis1=2),
    _one("swapdims.default", 4, 6, 8, dim0=0, dim1=-1),
    _one("t.default", 4, 6),
    _one("mT.default", 4, 6, 8),
    _one("permute.default", 4, 6, 8, dims=[2, 0, -2]),
    _one("movedim.int", 4, 6, 8, source=0, destination=2),
    _one("moveaxis.int", 4, 6, 8, source=2, destination=0),
    _one("expand.default", 4, 1, 8, size=[2, 4, 6, 8]),
    _one("broadcast_to.default", 4, 1, size=[4, 6]),
    _two("expand_as.default", (4, 1), (4, 6)),
    _one("slice.Tensor", 4, 12, dim=1, start=0, end=10, step=1),
    _one("slice.Tensor", 4, 12, dim=1, start=0, end=6, step=1),
    _one("slice.Tensor", 4, 12, dim=1, start=1, end=None, step=2),
    _one("slice.Tensor", 4, 12, dim=1, start=-40, end=12, step=1),
    _one("narrow.default", 4, 12, dim=1, start=2, length=8),
    _one("select.int", 4, 6, 8, dim=1, index=-1),
    _one("split.Tensor", 4, 24, split_size=8, dim=1),
    _one("split.sizes", 4, 24, split_size=[8, 16], dim=1),
    _one("split_with_sizes.default", 4, 24, split_sizes=[6, 18], dim=1),
    _one("chunk.default", 4, 24, chunks=2, dim=1),
    _one("tensor_split.sections", 4, 24, sections=4, dim=1),
    _one("unbind.int", 4, 6, dim=1),
    _case("cat.default", {"tensors.0": (4, 6), "tensors.1": (4, 2)}, dim=1),
    _case("stack.default", {"tensors.0": (4, 6), "tensors.1": (4, 6)}, dim=1),
    _one("repeat.default", 4, 6, repeats=[2, 1, 3]),
    _one("tile.default", 4, 6, dims=[1, 2]),
    _one("repeat_interleave.self_int", 4, 6, repeats=2, dim=1),
    _one("roll.default", 4, 6, shifts=[1], dims=[0]),
    _one("roll.default", 4, 6, shifts=[2], dims=[]),
    _one("flip.default", 4, 6, dims=[1]),
    _one("pad.default", 4, 6, pad=[1, 1]),
    _one("pad.default", 4, 6, 8, pad=[1, 2], mode="reflect"),
    _one("constant_pad_nd.default", 4, 12, pad=[0, 2, 1, 0]),
    # reductions
    _one("sum.dim_IntList", 4, 6, 8, dim=[1]),
    _one("sum.dim_IntList", 4, 6, 8, dim=[0, 2], keepdim=True),
    _one("sum.default", 4, 6),
    _one("mean.dim", 4, 6, 8, dim=[-1], keepdim=True),
    _one("mean.default", 4, 6),
    *(_one(f"{name}.default", 4, 6, 8, dim=[2]) for name in ("amax", "amin")),
    *(_one(f"{name}.default", 4, 6) for name in ("max", "min", "prod")),
    *(_one(f"{name}.dim", 4, 6, dim=1, keepdim=keep) for name in ("max", "min") for keep in (0, 1)),
    _one("prod.dim_int", 4, 6, dim=0),
    *(_one(f"{name}.default", 4, 6, integers={"self": 2}) for name in ("any", "all")),
    *(_one(f"{name}.dim", 4, 6, dim=1, integers={"self": 2}) for name in ("any", "all")),
    *(_one(f"{name}.dims", 4, 6, dim=[1], integers={"self": 2}) for name in ("any", "all")),
    *(_one(f"{name}.dim", 4, 6, dim=[1]) for name in ("var", "std")),
    *(_one(f"{name}.correction", 4, 6, dim=[1], correction=0) for name in ("var", "std")),
    *(_one(f"{name}.default", 4, 6) for name in ("var", "std")),
    _one("logsumexp.default", 4, 6, dim=[1]),
    _one("linalg_vector_norm.default", 4, 6, ord=2, dim=[1]),
    _one("cumsum.default", 4, 6, dim=1),
    _one("cumprod.default", 4, 6, dim=0),
    *(_one(f"{name}.default", 4, 6, dim=1) for name in ("argmax", "argmin")),
    _one("argmax.default", 4, 6, dim=None),
    _one("topk.default", 4, 6, k=2, dim=1),
    _one("sort.default", 4, 6, dim=0),
    _one("sort.stable", 4, 6, stable=True, dim=0),
    # look-ups
    _case("embedding.default", {"weight": (8, 6), "indices": (4, 2)}, {"indices": 8}),
    _case("gather.default", {"self": (4, 6), "index": (4, 2)}, {"index": 6}, dim=1),
    _case("index_select.default", {"self": (4, 6), "index": (4,)}, {"index": 6}, dim=1),
    _case("index.Tensor", {"self": (4, 6, 8), "indices.1": (2, 4)}, {"indices.1": 6}),
    _case(
        "index.Tensor",
        {"self": (4, 6, 8), "indices.0": (2, 1), "indices.2": (4,)},
        {"indices.0": 4, "indices.2": 8},
    ),
)

NOT_RUN = {
    "aten.arange.default": "no inputs",
    "aten.arange.start": "no inputs",
    "aten.arange.start_step": "no inputs",
    "aten.empty.memory_format": "no inputs",
    "aten.eye.default": "no inputs",
    "aten.full.default": "no inputs",
    "aten.linspace.default": "no inputs",
    "aten.ones.default": "no inputs",
    "aten.rand.default": "no inputs",
    "aten.randn.default": "no inputs",
    "aten.scalar_tensor.default": "no inputs",
    "aten.zeros.default": "no inputs",
    "aten.empty_like.default": "uninitialised",
    "aten.rand_like.default": "random",
    "aten.randn_like.default": "random",
    "aten.to.dtype_layout": "as to.dtype; layouts and devices are not in attributes",
    "aten.to.device": "as to.dtype; layouts and devices are not in attributes",
}
"""Described kinds without a case, and why."""
