"""Calls of the operators in `descriptions.lookup`."""

from shardwise.tdl.examples.cases import case, give

give(
    case("embedding.default", {"weight": (8, 6), "indices": (4, 2)}, {"indices": 8}),
    case("gather.default", {"self": (4, 6), "index": (4, 2)}, {"index": 6}, dim=1),
    case("index_select.default", {"self": (4, 6), "index": (4,)}, {"index": 6}, dim=1),
    case("index.Tensor", {"self": (4, 6, 8), "indices.1": (2, 4)}, {"indices.1": 6}),
    case(
        "index.Tensor",
        {"self": (4, 6, 8), "indices.0": (2, 1), "indices.2": (4,)},
        {"indices.0": 4, "indices.2": 8},
    ),
)
