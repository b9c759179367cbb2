"""Calls of the operators in `descriptions.losses`."""

from shardwise.tdl.examples.cases import case, give

# Targets are in the first share of the classes, which alone must know them.
give(
    *(
        case(
            "cross_entropy_loss.default",
            {"self": shape, "target": (shape[0], *shape[2:])},
            {"target": 2},
            reduction=reduction,
        )
        for shape in ((4, 8), (4, 8, 6))
        for reduction in (0, 1, 2)
    ),
    case("nll_loss_nd.default", {"self": (4, 8, 6), "target": (4, 6)}, {"target": 2}),
    case("nll_loss.default", {"self": (4, 8), "target": (4,)}, {"target": 2}),
    *(
        case(f"{name}.default", {"self": (4, 6), "target": (4, 6)}, reduction=reduction)
        for name in (
            "mse_loss",
            "l1_loss",
            "smooth_l1_loss",
            "huber_loss",
            "binary_cross_entropy_with_logits",
        )
        for reduction in (0, 1)
    ),
)
