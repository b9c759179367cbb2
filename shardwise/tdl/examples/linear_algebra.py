"""Calls of the operators in `descriptions.linear_algebra`."""

from typing import Any

from shardwise.tdl.examples.cases import case, give, two

_FACTORS: dict[str, Any] = {"input": (4, 6, 8), "weight": (10, 8)}


give(
    case("linear.default", _FACTORS),
    case("linear.default", {**_FACTORS, "bias": (10,)}),
    case("mm.default", {"self": (4, 6), "mat2": (6, 8)}),
    case("bmm.default", {"self": (2, 4, 6), "mat2": (2, 6, 8)}),
    case("addmm.default", {"self": (8,), "mat1": (4, 6), "mat2": (6, 8)}),
    case("baddbmm.default", {"self": (2, 4, 8), "batch1": (2, 4, 6), "batch2": (2, 6, 8)}),
    two("matmul.default", (2, 4, 6, 8), (8, 10)),
    two("matmul.default", (2, 4, 6, 8), (4, 8, 2)),
    two("matmul.default", (2, 1, 6, 8), (4, 8, 2)),
    two("matmul.default", (6, 8), (8,)),
    two("matmul.default", (8,), (2, 8, 4)),
    two("matmul.default", (8,), (8,)),
    case(
        "einsum.default", {"tensors.0": (2, 4, 6), "tensors.1": (2, 6, 8)}, equation="bij,bjk->bik"
    ),
    case("einsum.default", {"tensors.0": (4, 6), "tensors.1": (6, 8)}, equation="ij,jk->k"),
    case("einsum.default", {"tensors.0": (4, 6)}, equation="ij->ji"),
)
