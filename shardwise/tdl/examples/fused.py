"""Calls of fused attention, of core normalisations with their statistics, and of further losses."""

from typing import Any

from shardwise.tdl.examples.cases import Given, case, give, one

_HEADS: dict[str, Any] = {"query": (2, 4, 6, 8), "key": (2, 4, 10, 8), "value": (2, 4, 10, 8)}
_GPU: dict[str, Any] = {"query": (2, 4, 16, 8), "key": (2, 4, 16, 8), "value": (2, 4, 16, 8)}
_CHANNELS: dict[str, Any] = {"weight": (6,), "bias": (6,)}
_RUNNING: dict[str, Any] = {"running_mean": (6,), "running_var": (6,)}
_NORM: dict[str, Any] = {"momentum": 0.1, "eps": 1e-5}


def _elements(name: str, first: str = "self", **attributes: Any) -> tuple[Given, ...]:
    return tuple(
        case(f"{name}.default", {first: (4, 6), "target": (4, 6)}, reduction=r, **attributes)
        for r in (0, 1)
    )


def _classes(kind: str, *shape: int, weighted: bool = False, **attributes: Any) -> Given:
    shapes = {"self": shape, "target": (shape[0], *shape[2:])}
    if weighted:
        shapes["weight"] = (shape[1],)
    return case(kind, shapes, {"target": 2}, **attributes)


give(
    # attention
    case("_scaled_dot_product_flash_attention_for_cpu.default", _HEADS),
    case(
        "_scaled_dot_product_flash_attention_for_cpu.default",
        {**_HEADS, "attn_mask": (2, 1, 6, 10)},
    ),
    case("_scaled_dot_product_attention_math.default", _HEADS),
    case(
        "_scaled_dot_product_flash_attention.default",
        _GPU,
        needs="cuda",
        compute="bfloat16",
        tolerance=0.05,
        return_debug_mask=False,
    ),
    *(
        case(
            f"_scaled_dot_product_{kernel}_attention.default",
            _GPU,
            needs="cuda",
            compute="bfloat16",
            tolerance=0.05,
            compute_log_sumexp=True,
            attn_bias=None,
        )
        for kernel in ("efficient", "cudnn")
    ),
    one("_safe_softmax.default", 4, 6, 8, dim=-1),
    case(
        "_scaled_dot_product_flash_attention_for_cpu_backward.default",
        {
            "grad_out": (2, 4, 6, 8),
            **_HEADS,
            "out": (2, 4, 6, 8),
            "logsumexp": (2, 4, 6),
        },
        dropout_p=0.0,
        is_causal=False,
    ),
    # normalisations
    case(
        "native_layer_norm.default",
        {"input": (4, 6, 8), "weight": (8,), "bias": (8,)},
        normalized_shape=[8],
        eps=1e-5,
    ),
    case("native_layer_norm.default", {"input": (4, 6, 8)}, normalized_shape=[6, 8], eps=1e-5),
    case(
        "_fused_rms_norm.default",
        {"input": (4, 6, 8), "weight": (8,)},
        normalized_shape=[8],
        eps=1e-5,
    ),
    case(
        "native_layer_norm_backward.default",
        {
            "grad_out": (4, 6, 8),
            "input": (4, 6, 8),
            "mean": (4, 6, 1),
            "rstd": (4, 6, 1),
            "weight": (8,),
            "bias": (8,),
        },
        normalized_shape=[8],
        output_mask=[True, True, True],
    ),
    case("group_norm.default", {"input": (4, 8, 6), "weight": (8,), "bias": (8,)}, num_groups=4),
    case("group_norm.default", {"input": (4, 6, 2, 2)}, num_groups=1),
    case(
        "native_group_norm.default",
        {"input": (4, 8, 6), "weight": (8,), "bias": (8,)},
        N=4,
        C=8,
        HxW=6,
        group=4,
        eps=1e-5,
    ),
    case(
        "native_group_norm_backward.default",
        {
            "grad_out": (4, 8, 6),
            "input": (4, 8, 6),
            "mean": (4, 4),
            "rstd": (4, 4),
            "weight": (8,),
        },
        N=4,
        C=8,
        HxW=6,
        group=4,
        output_mask=[True, True, True],
    ),
    case(
        "instance_norm.default",
        {"input": (4, 6, 8), **_CHANNELS},
        use_input_stats=True,
        cudnn_enabled=False,
        **_NORM,
    ),
    case(
        "instance_norm.default",
        {"input": (4, 6, 8), **_CHANNELS, **_RUNNING},
        positive=True,
        use_input_stats=False,
        cudnn_enabled=False,
        **_NORM,
    ),
    *(
        case(
            f"{n}.default",
            {"input": (4, 6, 8), **_CHANNELS, **_RUNNING},
            positive=True,
            training=training,
            **_NORM,
        )
        for n in (
            "_native_batch_norm_legit",
            "_native_batch_norm_legit_functional",
            "native_batch_norm",
        )
        for training in (True, False)
    ),
    case(
        "_batch_norm_with_update_functional.default",
        {"input": (4, 6, 8), **_CHANNELS, **_RUNNING},
        positive=True,
        **_NORM,
    ),
    case(
        "_native_batch_norm_legit.no_stats",
        {"input": (4, 6, 8), **_CHANNELS},
        training=True,
        **_NORM,
    ),
    *(
        case(f"{n}.default", {"input": (4, 6, 8), **_CHANNELS, **_RUNNING}, positive=True, **_NORM)
        for n in ("_native_batch_norm_legit_no_training", "_batch_norm_no_update")
    ),
    case(
        "cudnn_batch_norm.default",
        {"input": (4, 6, 8, 8), **_CHANNELS, **_RUNNING},
        positive=True,
        needs="cuda",
        compute="float32",
        tolerance=1e-4,
        training=True,
        exponential_average_factor=0.1,
        epsilon=1e-5,
    ),
    case("_weight_norm.default", {"v": (4, 6), "g": (4, 1)}, dim=0),
    case("_weight_norm_interface.default", {"v": (4, 6), "g": (4, 1)}, dim=0),
    one("renorm.default", 4, 6, p=2, dim=0, maxnorm=1.0),
    *(
        case(
            f"{n}.default", {"grad_output": (4, 6), "output": (4, 6)}, dim=1, input_dtype="float64"
        )
        for n in ("_softmax_backward_data", "_log_softmax_backward_data")
    ),
    one("glu.default", 4, 12, dim=1),
    # losses
    _classes("cross_entropy_loss.default", 4, 8, weighted=True, reduction=1),
    _classes("cross_entropy_loss.default", 4, 8, weighted=True, reduction=2),
    _classes("cross_entropy_loss.default", 4, 8, label_smoothing=0.1),
    case("cross_entropy_loss.default", {"self": (4, 8), "target": (4, 8)}),
    _classes("nll_loss.default", 4, 8, weighted=True),
    _classes("nll_loss.default", 4, 8, reduction=0),
    _classes("nll_loss2d.default", 4, 8, 2, 2),
    _classes("nll_loss_forward.default", 4, 8, reduction=1, ignore_index=-100),
    _classes("nll_loss_forward.default", 4, 8, weighted=True, reduction=1, ignore_index=-100),
    _classes("nll_loss2d_forward.default", 4, 8, 2, 2, reduction=1, ignore_index=-100),
    *_elements("kl_div"),
    *_elements("soft_margin_loss"),
    *_elements("hinge_embedding_loss"),
    *_elements("poisson_nll_loss", "input", log_input=True, full=False, eps=1e-8),
    *(
        case(
            "binary_cross_entropy.default",
            {"self": (4, 6), "target": (4, 6), "weight": (6,)},
            reduction=r,
            given={n: [[0.1, 0.2, 0.3, 0.4, 0.5, 0.6]] * 4 for n in ("self", "target")},
        )
        for r in (0, 1)
    ),
    case(
        "binary_cross_entropy_with_logits.default",
        {"self": (4, 6), "target": (4, 6), "pos_weight": (6,)},
    ),
    case("margin_ranking_loss.default", {"input1": (6,), "input2": (6,), "target": (6,)}),
    case(
        "cosine_embedding_loss.default",
        {"input1": (4, 6), "input2": (4, 6), "target": (4,)},
        given={"target": [1, -1, 1, -1]},
    ),
    case("triplet_margin_loss.default", {"anchor": (4, 6), "positive": (4, 6), "negative": (4, 6)}),
    case("multi_margin_loss.default", {"self": (4, 6), "target": (4,)}, {"target": 6}),
    case(
        "multi_margin_loss.default",
        {"self": (4, 6), "target": (4,), "weight": (6,)},
        {"target": 6},
        p=1,
        margin=1.0,
    ),
    case("multilabel_margin_loss.default", {"self": (4, 6), "target": (4, 6)}, {"target": 6}),
    case(
        "ctc_loss.IntList",
        {"log_probs": (10, 4, 6), "targets": (4, 2)},
        given={"targets": [[1, 2], [3, 4], [5, 1], [2, 3]]},
        input_lengths=[10] * 4,
        target_lengths=[2] * 4,
        reduction=2,
    ),
    case(
        "ctc_loss.Tensor",
        {"log_probs": (10, 4, 6), "targets": (4, 2), "input_lengths": (4,), "target_lengths": (4,)},
        given={
            "targets": [[1, 2], [3, 4], [5, 1], [2, 3]],
            "input_lengths": [10] * 4,
            "target_lengths": [2] * 4,
        },
    ),
)
