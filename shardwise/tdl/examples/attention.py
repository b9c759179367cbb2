"""Calls of the operators in `descriptions.attention`."""

from shardwise.tdl.examples.cases import case, give

give(
    *(
        case(
            "scaled_dot_product_attention.default",
            {"query": (2, 4, 6, 8), "key": (2, 4, 10, 8), "value": (2, 4, 10, 6), **mask},
        )
        for mask in ({}, {"attn_mask": (6, 10)}, {"attn_mask": (2, 1, 6, 10)})
    ),
    case(
        "scaled_dot_product_attention.default",
        {"query": (2, 8, 6, 8), "key": (2, 2, 6, 8), "value": (2, 2, 6, 8)},
        enable_gqa=True,
        is_causal=True,
    ),
)
