"""Calls of the operators in `descriptions.normalisation`."""

from shardwise.tdl.examples.cases import case, give, one

give(
    case("layer_norm.default", {"input": (4, 6, 8)}, normalized_shape=[8]),
    case(
        "layer_norm.default",
        {"input": (4, 6, 8), "weight": (6, 8), "bias": (6, 8)},
        normalized_shape=[6, 8],
    ),
    case("rms_norm.default", {"input": (4, 6, 8), "weight": (8,)}, normalized_shape=[8]),
    *(
        case(
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
    case("group_norm.default", {"input": (4, 6, 8), "weight": (6,)}, num_groups=2),
    one("softmax.int", 4, 6, 8, dim=-1),
    one("_softmax.default", 4, 6, 8, dim=1, half_to_float=False),
    one("log_softmax.int", 4, 6, 8, dim=0),
    one("_log_softmax.default", 4, 6, dim=1, half_to_float=False),
)
