"""Calls beyond those that check descriptions: what only execution can get wrong."""

from __future__ import annotations

import shardwise.tdl.descriptions  # noqa: F401  (what the examples are examples of)
from shardwise.tdl.examples.cases import case, one

TARGETS = {"target": [0, 3, -100, 5, 7, 1, -100, 2]}
ROWS = {"offsets": [0, 3, 3, 6], "indices": [1, 7, 2, 4, 0, 5, 1, 3, 6, 2]}
BAGS = {"weight": (8, 6), "indices": (10,), "offsets": (4,)}
LOGITS = {"self": (8, 12), "target": (8,)}

MORE = (
    # Windows: strides, dilations, taps apart, borders that are not alike.
    case(
        "conv2d.default",
        {"input": (2, 4, 12, 8), "weight": (6, 4, 3, 3), "bias": (6,)},
        padding=[2, 1],
        dilation=[2, 1],
    ),
    case(
        "conv2d.default",
        {"input": (2, 4, 16, 16), "weight": (6, 4, 4, 4), "bias": (6,)},
        padding=[1, 1],
        stride=[2, 2],
    ),
    case("conv1d.default", {"input": (2, 8, 24), "weight": (4, 4, 5)}, padding=[2], groups=2),
    case("conv1d.default", {"input": (4, 8, 24), "weight": (8, 1, 4)}, padding=[3], groups=8),
    # Taps that reach beyond the data, and data that is one window.
    case(
        "conv2d.default", {"input": (2, 4, 2, 1), "weight": (4, 1, 7, 7)}, padding=[3, 3], groups=4
    ),
    case("conv2d.default", {"input": (2, 4, 4, 4), "weight": (6, 4, 4, 4)}, stride=[4, 4]),
    case("conv2d.default", {"input": (2, 4, 8, 4), "weight": (6, 4, 4, 4)}, stride=[4, 4]),
    case(
        "convolution.default",
        {"input": (2, 4, 8, 8), "weight": (6, 4, 3, 3), "bias": (6,)},
        stride=[1, 1],
        padding=[1, 1],
        dilation=[1, 1],
        transposed=False,
        output_padding=[0, 0],
        groups=1,
    ),
    case(
        "conv_transpose2d.input",
        {"input": (2, 4, 8, 8), "weight": (4, 6, 3, 3), "bias": (6,)},
        stride=[2, 2],
        padding=[1, 1],
        output_padding=[1, 1],
    ),
    case(
        "conv_transpose2d.input",
        {"input": (2, 4, 6, 8), "weight": (4, 6, 2, 2), "bias": (6,)},
        stride=[2, 2],
    ),
    case(
        "conv_transpose1d.default",
        {"input": (2, 4, 12), "weight": (4, 3, 3)},
        padding=[1],
        groups=2,
    ),
    one(
        "max_pool2d.default",
        2,
        4,
        16,
        12,
        kernel_size=[3, 3],
        stride=[2, 1],
        padding=[1, 1],
        ceil_mode=True,
    ),
    one(
        "avg_pool2d.default",
        2,
        4,
        8,
        12,
        kernel_size=[3, 3],
        stride=[1, 1],
        padding=[1, 1],
        count_include_pad=False,
    ),
    one(
        "avg_pool2d.default",
        2,
        4,
        16,
        12,
        kernel_size=[3, 3],
        stride=[2, 2],
        padding=[1, 1],
        ceil_mode=True,
    ),
    one(
        "avg_pool2d.default",
        2,
        4,
        8,
        8,
        kernel_size=[3, 3],
        stride=[1, 1],
        padding=[1, 1],
        divisor_override=5,
    ),
    one(
        "max_pool2d_with_indices.default",
        2,
        4,
        8,
        12,
        kernel_size=[3, 3],
        stride=[1, 1],
        padding=[1, 1],
    ),
    one("constant_pad_nd.default", 4, 12, 8, pad=[1, 2, 2, 1], value=3.0),
    one("pad.default", 4, 6, 12, pad=[3, 0], mode="replicate"),
    one("slice.Tensor", 8, 24, dim=1, start=3, end=23, step=1),
    one("tril.default", 8, 12, diagonal=1),
    one("triu.default", 8, 12, diagonal=-2),
    case(
        "upsample_bilinear2d.vec",
        {"input": (2, 3, 8, 8)},
        output_size=None,
        scale_factors=[2.0, 2.0],
        align_corners=True,
    ),
    # Sums: what is added once, what divides by the whole.
    case("linear.default", {"input": (4, 12), "weight": (6, 12), "bias": (6,)}),
    one("mean.dim", 4, 6, 12, dim=[1, 2], keepdim=False),
    one("amax.default", 4, 12, dim=[1], keepdim=True),
    one("squeeze.default", 2, 2, 1, 6),
    # Lookups.
    case(
        "embedding.default", {"weight": (12, 6), "indices": (4, 6)}, {"indices": 12}, padding_idx=7
    ),
    *(case("embedding_bag.default", BAGS, given=ROWS, mode=mode) for mode in (0, 1)),
    case(
        "embedding_bag.padding_idx",
        BAGS,
        given=ROWS,
        scale_grad_by_freq=False,
        mode=1,
        sparse=False,
        include_last_offset=False,
        padding_idx=-6,
    ),
    case("embedding_bag.default", {**BAGS, "per_sample_weights": (10,)}, given=ROWS, mode=0),
    case(
        "index_put.default",
        {"self": (8, 6), "indices.0": (4,), "indices.1": (4,), "values": (4,)},
        {"indices.0": 8, "indices.1": 6},
        accumulate=True,
    ),
    case(
        "scatter_reduce.two",
        {"self": (6, 8), "index": (6, 8), "src": (6, 8)},
        {"index": 6},
        dim=0,
        reduce="amax",
        include_self=True,
    ),
    # Losses.
    case("cross_entropy_loss.default", LOGITS, given=TARGETS),
    case("cross_entropy_loss.default", {**LOGITS, "weight": (12,)}, given=TARGETS, positive=True),
    case(
        "cross_entropy_loss.default",
        {**LOGITS, "weight": (12,)},
        given=TARGETS,
        positive=True,
        label_smoothing=0.2,
        reduction=2,
    ),
    case("nll_loss_nd.default", {**LOGITS, "weight": (12,)}, given=TARGETS, positive=True),
    case("nll_loss_forward.default", LOGITS, given=TARGETS, reduction=1, ignore_index=-100),
    # Norms.
    case("group_norm.default", {"input": (4, 12, 6), "weight": (12,), "bias": (12,)}, num_groups=3),
    case("group_norm.default", {"input": (4, 8, 4, 6)}, num_groups=8),
    case("rms_norm.default", {"input": (4, 12)}, normalized_shape=[12]),
    one("linalg_vector_norm.default", 6, 8, ord=3, dim=None),
    case(
        "batch_norm.default",
        {"input": (8, 6)},
        training=True,
        momentum=0.1,
        eps=1e-5,
        cudnn_enabled=False,
    ),
    # Attention: a causal mask as it runs through a share of the queries.
    *(
        case(
            "scaled_dot_product_attention.default",
            {"query": (2, 4, 8, 8), "key": (2, 4, keys, 8), "value": (2, 4, keys, 8)},
            is_causal=True,
        )
        for keys in (8, 12)
    ),
    case(
        "_scaled_dot_product_flash_attention_for_cpu.default",
        {"query": (2, 4, 8, 8), "key": (2, 4, 8, 8), "value": (2, 4, 8, 8)},
        dropout_p=0.0,
        is_causal=True,
    ),
)
"""Kind and example."""
