"""Decompositions and solvers of matrices: opaque, split along their batch (Tofu §4.1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shardwise.tdl.language import Opaque, TensorHandle
from shardwise.tdl.registry import Call, op


def _cubic(call: Call) -> tuple[float, float]:
    shape = next(iter(call.shapes.values()))
    work = 1.0
    for extent in (*shape, min(shape[-2:])):
        work *= extent
    return work, 2.0 * work


def _per_matrix(*tensors: TensorHandle, out: Any) -> list[Callable[..., Any]]:
    """y[b…, i, j] = f(x[b…, :, :])[i, j]"""
    shapes = out if isinstance(out[0] if out else None, tuple) else (out,)
    batch = max(t.rank - 2 for t in tensors)
    solve = Opaque()

    def output(*i: Any) -> Any:
        outer = i[:batch]
        parts = []
        for t in tensors:
            own = outer[batch - (t.rank - 2) :] if t.rank >= 2 else ()
            leading = tuple(0 if size == 1 else x for x, size in zip(own, t.shape, strict=False))
            parts.append(t[(*leading, *[slice(None)] * (t.rank - len(leading)))])
        return solve(*parts)

    return [output for _ in shapes]


op(
    *(f"aten.{name}.default" for name in ("inverse", "linalg_inv", "linalg_inv_ex", "matrix_exp")),
    *(f"aten.{name}.default" for name in ("linalg_matrix_exp", "linalg_cholesky")),
    *(
        f"aten.{name}.default"
        for name in ("linalg_cholesky_ex", "linalg_eigvalsh", "linalg_svdvals")
    ),
    *(
        f"aten.{name}.default"
        for name in ("logdet", "det", "linalg_det", "linalg_slogdet", "slogdet")
    ),
    *(f"aten.{name}.default" for name in ("_linalg_det", "_linalg_slogdet", "linalg_matrix_power")),
    *(f"aten.{name}.default" for name in ("matrix_power", "cholesky_inverse", "pinverse")),
    saves=("*", "output"),
    flops=_cubic,
)(_per_matrix)
op(
    *(f"aten.{name}.default" for name in ("linalg_eigh", "linalg_qr", "linalg_svd")),
    *(f"aten.{name}.default" for name in ("linalg_lu_factor_ex", "linalg_solve_ex")),
    *(f"aten.{name}.default" for name in ("linalg_solve_triangular", "cholesky_solve")),
    *(f"aten.{name}.default" for name in ("triangular_solve", "linalg_solve")),
    "aten.linalg_pinv.default",
    saves=("*", "output"),
    flops=_cubic,
)(_per_matrix)
