"""Decompositions and solvers of matrices: opaque, split along their batch (Tofu §4.1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shardwise.tdl.describe import Call, op
from shardwise.tdl.language import Opaque, TensorHandle


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


def _register(saves: tuple[str, ...], *names: str, note: str = "") -> None:
    kinds = (f"aten.{name}.default" for name in names)
    op(*kinds, saves=saves, flops=_cubic, note=note)(_per_matrix)


_LU = "the factors that it solves with are not counted"

_register(("output.0",), "inverse", "linalg_inv", "linalg_inv_ex")
_register(("output.0",), "linalg_cholesky", "linalg_cholesky_ex")
_register(("output",), "linalg_eigh", "linalg_qr", "linalg_svd")
_register(("output.0", "output.1"), "linalg_lu_factor_ex")
_register(("*",), "matrix_exp", "linalg_matrix_exp", "matrix_power", "linalg_matrix_power")
_register(("output",), "linalg_eigvalsh", "linalg_svdvals", note="vectors are not counted")
_register(("A", "output.0", "output.2", "output.3"), "_linalg_slogdet")
_register(("*", "output"), "_linalg_det", "cholesky_inverse", "cholesky_solve")
_register(("*", "output"), "linalg_pinv", "pinverse")
_register(("*", "output"), "det", "linalg_det", note=_LU)
_register(("*", "output.0"), "slogdet", "linalg_slogdet", "logdet", note=_LU)
_register(("A", "output.0"), "linalg_solve", "linalg_solve_ex", note=_LU)
_register(("self", "output"), "linalg_solve_triangular")
_register(("self", "A", "output.0"), "triangular_solve")
