"""Calls of further products, of products of experts and of linear systems."""

from typing import Any

import numpy as np

from shardwise.tdl.example import Example
from shardwise.tdl.examples.cases import Given, case, give, one, two

_SQUARE = (
    "inverse linalg_inv linalg_inv_ex matrix_exp linalg_matrix_exp logdet det linalg_det slogdet "
    "linalg_slogdet _linalg_det _linalg_slogdet pinverse linalg_svdvals linalg_qr "
    "linalg_lu_factor_ex"
)
_ENDS: dict[str, Any] = {"offs": np.array([2, 4, 8], np.int32)}


def _matrices(name: str, argument: str, **more: Any) -> Given:
    return case(f"{name}.default", {argument: (4, 3, 3)}, tolerance=1e-6, **more)


_LETTER = {
    "linalg_inv", "linalg_inv_ex", "linalg_det", "linalg_slogdet", "_linalg_det",
    "_linalg_slogdet", "linalg_svdvals", "linalg_qr", "linalg_lu_factor_ex",
}  # fmt: skip
"""Operators whose argument is called A."""

give(
    case("dot.default", {"self": (6,), "tensor": (6,)}),
    two("vdot.default", (6,), (6,)),
    case("mv.default", {"self": (4, 6), "vec": (6,)}),
    case("addmv.default", {"self": (4,), "mat": (4, 6), "vec": (6,)}),
    *(case(f"{n}.default", {"self": (4,), "vec2": (6,)}) for n in ("outer", "ger")),
    case("addr.default", {"self": (4, 6), "vec1": (4,), "vec2": (6,)}),
    case("addbmm.default", {"self": (4, 8), "batch1": (2, 4, 6), "batch2": (2, 6, 8)}),
    two("inner.default", (2, 4, 6), (8, 6)),
    two("kron.default", (4, 6), (2, 2)),
    case(
        "tensordot.default",
        {"self": (4, 6, 8), "other": (8, 6, 10)},
        dims_self=[1, 2],
        dims_other=[1, 0],
    ),
    case(
        "bilinear.default",
        {"input1": (4, 6), "input2": (4, 8), "weight": (10, 6, 8), "bias": (10,)},
    ),
    case(
        "linalg_multi_dot.default", {"tensors.0": (4, 6), "tensors.1": (6, 2), "tensors.2": (2, 8)}
    ),
    case("chain_matmul.default", {"matrices.0": (4, 6), "matrices.1": (6, 8)}),
    case(
        "_int_mm.default", {"self": (32, 16), "mat2": (16, 8)}, {"self": 4, "mat2": 4}, whole="int8"
    ),
    case("embedding.default", {"weight": (8, 6), "indices": (4,)}, {"indices": 8}),
    # experts: three groups of rows
    case(
        "_grouped_mm.default",
        {"self": (8, 16), "mat2": (3, 16, 8), "offs": (3,)},
        given=_ENDS,
        compute="bfloat16",
        tolerance=0.1,
    ),
    case(
        "_grouped_mm.default",
        {"self": (4, 8, 16), "mat2": (4, 16, 8)},
        compute="bfloat16",
        tolerance=0.1,
    ),
    case(
        "_grouped_mm.default",
        {"self": (16, 8), "mat2": (8, 16), "offs": (3,)},
        given=_ENDS,
        compute="bfloat16",
        tolerance=0.1,
    ),
    (
        "transformers.grouped_mm_fallback.default",
        Example({"input": (8, 16), "weight": (3, 16, 8), "offs": (3,)}, given=_ENDS),
    ),
    one("histc.default", 12, bins=4, min=-2, max=2),
    one("histc.default", 12, bins=4),
    # per matrix
    *(_matrices(n, "A" if n in _LETTER else "self") for n in _SQUARE.split()),
    _matrices("matrix_power", "self", n=2),
    _matrices("linalg_pinv", "self", rcond=1e-9),
    _matrices("linalg_matrix_power", "self", n=2),
    case("linalg_solve_ex.default", {"A": (4, 3, 3), "B": (4, 3, 2)}, tolerance=1e-6),
    case("linalg_solve.default", {"A": (4, 3, 3), "B": (4, 3, 2)}, tolerance=1e-6),
    case(
        "linalg_solve_triangular.default",
        {"self": (4, 3, 3), "B": (4, 3, 2)},
        upper=True,
        tolerance=1e-6,
    ),
    case("triangular_solve.default", {"self": (4, 3, 2), "A": (4, 3, 3)}, tolerance=1e-6),
    *(
        case(f"{n}.default", {a: (4, 2, 2)}, given={a: [[[2.0, 0.5], [0.5, 1.0]]] * 4})
        for n, a in (
            ("linalg_cholesky", "self"),
            ("linalg_cholesky_ex", "self"),
            ("cholesky_inverse", "self"),
            ("linalg_eigvalsh", "self"),
            ("linalg_eigh", "self"),
            ("linalg_svd", "A"),
        )
    ),
    case(
        "cholesky_solve.default",
        {"self": (4, 2, 3), "input2": (4, 2, 2)},
        given={"input2": [[[2.0, 0.0], [0.5, 1.0]]] * 4},
    ),
)
