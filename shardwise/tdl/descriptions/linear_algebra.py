"""Products of matrices."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from math import prod
from operator import mul
from typing import Any

from shardwise.tdl.language import NotCovered, Sum, TensorHandle, named
from shardwise.tdl.registry import Call, Flops, op


def _product_flops(first: str, second: str) -> Flops:
    """2·M·N·K; each differentiable factor's gradient is a product as large as the forward one."""

    def flops(call: Call) -> tuple[float, float]:
        forward = 2.0 * call.output_elements * call.shapes[first][-1]
        return forward, forward * sum(n in call.differentiable for n in (first, second))

    return flops


@op(
    "aten.linear.default",
    saves=("input", "weight"),
    flops=_product_flops("input", "weight"),
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


@op("aten.mm.default", saves=("self", "mat2"), flops=_product_flops("self", "mat2"))
def mm(self: TensorHandle, mat2: TensorHandle) -> Callable[..., Any]:
    """y[i, j] = Σ_k a[i, k] b[k, j]"""
    return lambda i, j: Sum(lambda k: self[i, k] * mat2[k, j])


@op("aten.bmm.default", saves=("self", "mat2"), flops=_product_flops("self", "mat2"))
def bmm(self: TensorHandle, mat2: TensorHandle) -> Callable[..., Any]:
    """y[b, i, j] = Σ_k a[b, i, k] c[b, k, j]"""
    return lambda b, i, j: Sum(lambda k: self[b, i, k] * mat2[b, k, j])


@op("aten.addmm.default", saves=("mat1", "mat2"), flops=_product_flops("mat1", "mat2"))
def addmm(self: TensorHandle, mat1: TensorHandle, mat2: TensorHandle) -> Callable[..., Any]:
    """y[i, j] = Σ_k a[i, k] b[k, j] + bias[i, j]"""
    return lambda row, out: (
        Sum(named(lambda *k: mat1[(row, *k)] * mat2[(*k, out)], "in"), mat2.shape[:1])
        + self.at((row, out))
    )


@op("aten.baddbmm.default", saves=("batch1", "batch2"), flops=_product_flops("batch1", "batch2"))
def baddbmm(self: TensorHandle, batch1: TensorHandle, batch2: TensorHandle) -> Callable[..., Any]:
    """y[b, i, j] = Σ_k a[b, i, k] c[b, k, j] + bias[b, i, j]"""
    return lambda b, i, j: Sum(lambda k: batch1[b, i, k] * batch2[b, k, j]) + self.at((b, i, j))


@op("aten.matmul.default", saves=("self", "other"), flops=_product_flops("self", "other"))
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


def _letters(equation: str, count: int) -> tuple[list[str], str]:
    """The operands' letters and the result's."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    operands = left.split(",")
    if not arrow or "." in left or len(operands) != count:
        raise NotCovered(f"einsum {equation!r}")
    return operands, right


def _einsum_flops(call: Call) -> tuple[float, float]:
    shapes = list(call.shapes.values())
    operands, _ = _letters(call.attributes["equation"], len(shapes))
    extents: dict[str, int] = {}
    for letters, shape in zip(operands, shapes, strict=True):
        for letter, size in zip(letters, shape, strict=True):
            extents[letter] = max(size, extents.get(letter, 1))
    forward = 2.0 * prod(extents.values())
    return forward, forward * len(call.differentiable)


@op("aten.einsum.default", saves=("tensors",), flops=_einsum_flops)
def einsum(tensors: list[TensorHandle], *, equation: str) -> Callable[..., Any]:
    """y[i…] = Σ_{k…} Π_t x_t[…], the letters of the equation as indices"""
    operands, result = _letters(equation, len(tensors))
    pairs = list(zip(tensors, operands, strict=True))
    summed = [a for a in dict.fromkeys("".join(operands)) if a not in result]
    extents = [
        max(t.shape[letters.index(a)] for t, letters in pairs if a in letters) for a in summed
    ]

    def output(*i: Any) -> Any:
        def term(*k: Any) -> Any:
            index = dict(zip(result, i, strict=True)) | dict(zip(summed, k, strict=True))
            factors = [
                t[tuple(0 if n == 1 else index[a] for a, n in zip(letters, t.shape, strict=True))]
                for t, letters in pairs
            ]
            return reduce(mul, factors)

        return Sum(named(term, *summed), extents) if summed else term()

    return named(output, *result)
