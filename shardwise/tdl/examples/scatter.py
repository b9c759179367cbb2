"""Calls of the operators in `descriptions.scatter`, and of further look-ups."""

from typing import Any

from shardwise.tdl.examples.cases import case, give

_WRITE: dict[str, Any] = {"self": (4, 6), "index": (4, 2), "src": (4, 2)}
_BAG: dict[str, Any] = {"weight": (8, 6), "indices": (8,), "offsets": (4,)}
_OFFSETS: dict[str, Any] = {"offsets": [0, 2, 4, 6]}

give(
    case(
        "scatter.src",
        _WRITE,
        {"index": 6},
        given={"index": [[0, 3], [1, 2], [5, 4], [2, 0]]},
        dim=1,
    ),
    case(
        "scatter.src",
        {"self": (6, 8), "index": (4, 8), "src": (5, 8)},
        given={"index": [[n] * 8 for n in (3, 0, 5, 1)]},
        dim=0,
    ),
    case("scatter.value", {"self": (4, 6), "index": (4, 2)}, {"index": 6}, dim=1, value=2.0),
    case("scatter.reduce", _WRITE, {"index": 6}, dim=1, reduce="add"),
    case(
        "scatter.value_reduce",
        {"self": (4, 6), "index": (4, 2)},
        {"index": 6},
        dim=1,
        value=2.0,
        reduce="multiply",
    ),
    *(case("scatter_reduce.two", _WRITE, {"index": 6}, dim=1, reduce=r) for r in ("sum", "amax")),
    case("scatter_add.default", _WRITE, {"index": 6}, dim=1),
    case(
        "scatter_add.default", {"self": (6, 8), "index": (4, 8), "src": (4, 8)}, {"index": 6}, dim=0
    ),
    case(
        "index_add.default", {"self": (4, 6), "index": (8,), "source": (8, 6)}, {"index": 4}, dim=0
    ),
    case(
        "index_copy.default",
        {"self": (4, 6), "index": (2,), "source": (4, 2)},
        given={"index": [3, 1]},
        dim=1,
    ),
    case(
        "index_reduce.default",
        {"self": (4, 6), "index": (8,), "source": (8, 6)},
        {"index": 4},
        dim=0,
        reduce="prod",
    ),
    case("index_fill.int_Scalar", {"self": (4, 6), "index": (2,)}, {"index": 6}, dim=1, value=2.0),
    case(
        "index_fill.int_Tensor", {"self": (4, 6), "index": (2,), "value": ()}, {"index": 6}, dim=1
    ),
    *(
        case(
            f"{n}.default",
            {"self": (4, 6, 8), "indices.1": (3,), "values": (4, 3, 8)},
            given={"indices.1": [4, 0, 2]},
        )
        for n in ("index_put", "_unsafe_index_put")
    ),
    case("index_put.default", {"self": (4, 6), "indices.0": (3,), "values": ()}, {"indices.0": 4}),
    case(
        "index_put.default",
        {"self": (4, 6), "indices.0": (8,), "values": (8, 6)},
        {"indices.0": 4},
        accumulate=True,
    ),
    case("masked_scatter.default", {"self": (4, 6), "mask": (4, 6), "source": (24,)}, {"mask": 2}),
    case(
        "put.default", {"self": (4, 6), "index": (3,), "source": (3,)}, given={"index": [1, 7, 9]}
    ),
    # look-ups
    case(
        "embedding_dense_backward.default",
        {"grad_output": (4, 6), "indices": (4,)},
        {"indices": 8},
        num_weights=8,
        padding_idx=-1,
        scale_grad_by_freq=False,
    ),
    case("take_along_dim.default", {"self": (4, 6), "indices": (4, 2)}, {"indices": 6}, dim=1),
    case("take_along_dim.default", {"self": (4, 6), "indices": (2,)}, {"indices": 6}),
    case("take.default", {"self": (4, 6), "index": (4,)}, {"index": 6}),
    case("_unsafe_index.Tensor", {"self": (4, 6), "indices.0": (4,)}, {"indices.0": 4}),
    case("index_select.default", {"self": (6, 4), "index": (8,)}, {"index": 6}, dim=0),
    # One row of the table, which share 0 has, is in every bag.
    case("embedding_bag.default", _BAG, {"indices": 2}, given=_OFFSETS),
    case(
        "embedding_bag.padding_idx",
        _BAG,
        {"indices": 2},
        given=_OFFSETS,
        mode=1,
        scale_grad_by_freq=False,
        sparse=False,
        include_last_offset=False,
        padding_idx=None,
    ),
    case("_embedding_bag.default", _BAG, {"indices": 2}, given=_OFFSETS, mode=2),
    case(
        "_embedding_bag_forward_only.default",
        {**_BAG, "per_sample_weights": (8,)},
        {"indices": 2},
        given=_OFFSETS,
    ),
)
