"""Products of matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shardwise.tdl.language import Sum, TensorHandle, named
from shardwise.tdl.registry import Call, op


def _both_gradients(call: Call, forward: float) -> tuple[float, float]:
    """Each differentiable factor's gradient is a product as large as the forward one."""
    factors = ["input", "weight", "self", "other", "mat1", "mat2", "batch1", "batch2"]
    wanted = sum(n in call.differentiable for n in factors if n in call.shapes)
    return forward, forward * min(wanted, 2)


def _linear_flops(call: Call) -> tuple[float, float]:
    return _both_gradients(call, 2.0 * call.output_elements * call.shapes["weight"][-1])


def _product_flops(first: str) -> Callable[[Call], tuple[float, float]]:
    def flops(call: Call) -> tuple[float, float]:
        return _both_gradients(call, 2.0 * call.output_elements * call.shapes[first][-1])

    return flops


@op(
    "aten.linear.default",
    saves=("input", "weight"),
    flops=_linear_flops,
)
def linear(
    input: TensorHandle, weight: TensorHandle, bias: TensorHandle | None = None
) -> Callable[..., Any]:
    """y[…, o] = Σ_k x[…, k] w[o, k] + b[o]"""

    def output(*i: Any) -> Any:
        total = Sum(
            named(lambda *k: input[(*i[:-1], *k)] * weight[(i[-1], *k)], "in"), weight.shape[1:]
        )
        return total + bias[i[-1]] if bias is not None else total

    return named(output, "out")


@op("aten.mm.default", saves=("self", "mat2"), flops=_product_flops("self"))
def mm(self: TensorHandle, mat2: TensorHandle) -> Callable[..., Any]:
    """y[i, j] = Σ_k a[i, k] b[k, j]"""
    return lambda i, j: Sum(lambda k: self[i, k] * mat2[k, j])


@op("aten.bmm.default", saves=("self", "mat2"), flops=_product_flops("self"))
def bmm(self: TensorHandle, mat2: TensorHandle) -> Callable[..., Any]:
    """y[b, i, j] = Σ_k a[b, i, k] c[b, k, j]"""
    return lambda b, i, j: Sum(lambda k: self[b, i, k] * mat2[b, k, j])


@op("aten.addmm.default", saves=("mat1", "mat2"), flops=_product_flops("mat1"))
def addmm(self: TensorHandle, mat1: TensorHandle, mat2: TensorHandle) -> Callable[..., Any]:
    """y[i, j] = Σ_k a[i, k] b[k, j] + bias[i, j]"""
    return lambda row, out: (
        Sum(named(lambda *k: mat1[(row, *k)] * mat2[(*k, out)], "in"), mat2.shape[:1])
        + self.at((row, out))
    )


@op("aten.baddbmm.default", saves=("batch1", "batch2"), flops=_product_flops("batch1"))
def baddbmm(self: TensorHandle, batch1: TensorHandle, batch2: TensorHandle) -> Callable[..., Any]:
    """y[b, i, j] = Σ_k a[b, i, k] c[b, k, j] + bias[b, i, j]"""
    return lambda b, i, j: Sum(lambda k: batch1[b, i, k] * batch2[b, k, j]) + self.at((b, i, j))


@op("aten.matmul.default", saves=("self", "other"), flops=_product_flops("self"))
def matmul(self: TensorHandle, other: TensorHandle) -> Callable[..., Any]:
    """Batched product with broadcast leading dimensions; vectors lose their dimension."""

    def output(*i: Any) -> Any:
        rows, columns = self.rank > 1, other.rank > 1
        batch = i[: len(i) - rows - columns]
        row = (i[len(batch)],) if rows else ()
        column = (i[-1],) if columns else ()

        def term(k: Any) -> Any:
            a = _batched(self, batch, (*row, k))
            b = _batched(other, batch, (k, *column))
            return a * b

        return Sum(term)

    return output


def _batched(tensor: TensorHandle, batch: tuple[Any, ...], last: tuple[Any, ...]) -> Any:
    leading = tensor.rank - len(last)
    aligned = batch[len(batch) - leading :] if leading else ()
    fixed = tuple(
        0 if size == 1 else index
        for index, size in zip(aligned, tensor.shape[:leading], strict=True)
    )
    return tensor[(*fixed, *last)]
