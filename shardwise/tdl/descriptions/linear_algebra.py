"""Products of matrices."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from math import prod
from operator import mul
from typing import Any

from shardwise.tdl.describe import Call, Flops, op
from shardwise.tdl.descriptions.arguments import dim_of
from shardwise.tdl.descriptions.movement import all_of
from shardwise.tdl.language import NotCovered, Opaque, Sum, TensorHandle, apply, named


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


def _factors(call: Call) -> tuple[str, ...]:
    """Every factor, for the gradients of the others; a lone tensor is only summed or turned."""
    return ("tensors",) if len(call.shapes) > 1 else ()


@op("aten.einsum.default", saves=_factors, flops=_einsum_flops)
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


@op("aten.dot.default", "aten.vdot.default", category="light", saves=("*",))
def dot(*vectors: TensorHandle) -> Callable[..., Any]:
    """y = Σ_k a[k] b[k]"""
    a, b = vectors
    return lambda: Sum(lambda k: a[k] * b[k])


@op("aten.mv.default", saves=("self", "vec"), flops=_product_flops("self", "vec"))
def mv(self: TensorHandle, vec: TensorHandle) -> Callable[..., Any]:
    """y[i] = Σ_k a[i, k] v[k]"""
    return lambda i: Sum(lambda k: self[i, k] * vec[k])


@op("aten.addmv.default", saves=("mat", "vec"), flops=_product_flops("mat", "vec"))
def addmv(self: TensorHandle, mat: TensorHandle, vec: TensorHandle) -> Callable[..., Any]:
    """y[i] = Σ_k a[i, k] v[k] + bias[i]"""
    return lambda i: Sum(lambda k: mat[i, k] * vec[k]) + self.at((i,))


@op("aten.outer.default", "aten.ger.default", category="light", saves=("*",))
def outer(self: TensorHandle, vec2: TensorHandle) -> Callable[..., Any]:
    """y[i, j] = a[i] b[j]"""
    return lambda i, j: self[i] * vec2[j]


@op("aten.addr.default", category="light", saves=("vec1", "vec2"))
def addr(self: TensorHandle, vec1: TensorHandle, vec2: TensorHandle) -> Callable[..., Any]:
    """y[i, j] = x[i, j] + a[i] b[j]"""
    return lambda i, j: apply(self.at((i, j)), vec1[i], vec2[j])


def _addbmm_flops(call: Call) -> tuple[float, float]:
    forward = 2.0 * prod(call.shapes["batch1"]) * call.shapes["batch2"][-1]
    return forward, forward * sum(n in call.differentiable for n in ("batch1", "batch2"))


@op("aten.addbmm.default", saves=("batch1", "batch2"), flops=_addbmm_flops)
def addbmm(self: TensorHandle, batch1: TensorHandle, batch2: TensorHandle) -> Callable[..., Any]:
    """y[i, j] = Σ_{b, k} a[b, i, k] c[b, k, j] + bias[i, j]"""
    return lambda i, j: Sum(lambda b, k: batch1[b, i, k] * batch2[b, k, j]) + self.at((i, j))


@op("aten.inner.default", saves=("*",), flops=_product_flops("self", "other"))
def inner(self: TensorHandle, other: TensorHandle) -> Callable[..., Any]:
    """y[i…, j…] = Σ_k a[i…, k] b[j…, k]"""
    if not self.rank or not other.rank:
        return lambda *i: self.at(i) * other.at(i)
    rows = self.rank - 1
    return lambda *i: Sum(lambda k: self[(*i[:rows], k)] * other[(*i[rows:], k)])


@op("aten.kron.default", category="light", saves=("*",))
def kron(self: TensorHandle, other: TensorHandle) -> Callable[..., Any]:
    """y[i] = a[i // n] b[i mod n]"""
    if self.rank != other.rank:
        raise NotCovered("a Kronecker product of tensors with unlike dimensions")
    return lambda *i: apply(
        self[tuple(x // n for x, n in zip(i, other.shape, strict=True))],
        other[tuple(x % n for x, n in zip(i, other.shape, strict=True))],
    )


def _tensordot_flops(call: Call) -> tuple[float, float]:
    summed = prod(call.shapes["self"][d] for d in call.attributes["dims_self"])
    forward = 2.0 * call.output_elements * summed
    return forward, forward * len(call.differentiable)


@op("aten.tensordot.default", saves=("*",), flops=_tensordot_flops)
def tensordot(
    self: TensorHandle, other: TensorHandle, *, dims_self: list[int], dims_other: list[int]
) -> Callable[..., Any]:
    """y[i…, j…] = Σ_{k…} a[i…, k…] b[k…, j…]"""
    left = [dim_of(d, self.rank) for d in dims_self]
    right = [dim_of(d, other.rank) for d in dims_other]

    def output(*i: Any) -> Any:
        def term(*k: Any) -> Any:
            outer = iter(i)
            a = [k[left.index(d)] if d in left else next(outer) for d in range(self.rank)]
            b = [k[right.index(d)] if d in right else next(outer) for d in range(other.rank)]
            return self[tuple(a)] * other[tuple(b)]

        return Sum(term, [self.shape[d] for d in left])

    return output


def _bilinear_flops(call: Call) -> tuple[float, float]:
    forward = 2.0 * call.output_elements * prod(call.shapes["weight"][1:])
    return forward, 2.0 * forward


@op("aten.bilinear.default", saves=("input1", "input2", "weight"), flops=_bilinear_flops)
def bilinear(
    input1: TensorHandle,
    input2: TensorHandle,
    weight: TensorHandle,
    bias: TensorHandle | None = None,
) -> Callable[..., Any]:
    """y[…, o] = Σ_{j, k} a[…, j] w[o, j, k] b[…, k] + bias[o]"""

    def output(*i: Any) -> Any:
        def term(j: Any, k: Any) -> Any:
            return input1[(*i[:-1], j)] * weight[i[-1], j, k] * input2[(*i[:-1], k)]

        total = Sum(term, weight.shape[1:])
        return total + bias[i[-1]] if bias is not None else total

    return named(output, "out")


def _chain_flops(call: Call) -> tuple[float, float]:
    """Multiplied from the left."""
    shapes = list(call.shapes.values())
    rows, forward = shapes[0][0], 0.0
    for shape in shapes[1:]:
        forward += 2.0 * rows * shape[0] * shape[-1]
    return forward, 2.0 * forward


@op("aten.linalg_multi_dot.default", "aten.chain_matmul.default", saves=("*",), flops=_chain_flops)
def multi_dot(
    tensors: list[TensorHandle] | None = None, matrices: list[TensorHandle] | None = None
) -> Callable[..., Any]:
    """y[i, j] = Σ a[i, k] … z[l, j]: split along the outermost dimensions"""
    chain = tensors or matrices or []
    first, middle, last = chain[0], chain[1:-1], chain[-1]
    product = Opaque()

    def output(*i: Any) -> Any:
        left = first[i[0], :] if first.rank == 2 else first[:]
        right = last[:, i[-1]] if last.rank == 2 else last[:]
        return product(left, *map(all_of, middle), right)

    return output


@op("aten._int_mm.default", saves=(), flops=_product_flops("self", "mat2"))
def int_mm(self: TensorHandle, mat2: TensorHandle) -> Callable[..., Any]:
    """y[i, j] = Σ_k a[i, k] b[k, j]"""
    return mm(self, mat2)


@op("aten._scaled_mm.default", saves=("*",), flops=_product_flops("self", "mat2"))
def scaled_mm(
    self: TensorHandle,
    mat2: TensorHandle,
    scale_a: TensorHandle,
    scale_b: TensorHandle,
    bias: TensorHandle | None = None,
    scale_result: TensorHandle | None = None,
) -> Callable[..., Any]:
    """y[i, j] = scale Σ_k a[i, k] b[k, j] + bias[j]"""
    if scale_a.rank not in (0, 2) or scale_b.rank not in (0, 2) or scale_result is not None:
        raise NotCovered("scales of blocks")
    if scale_a.shape[1:] not in ((), (1,)) or scale_b.shape[:1] not in ((), (1,)):
        raise NotCovered("scales along the summed dimension")

    def output(row: Any, out: Any) -> Any:
        scales = (scale_a.at((row, 0)), scale_b.at((0, out)))
        total = Sum(
            named(lambda *k: apply(*scales) * self[(row, *k)] * mat2[(*k, out)], "in"),
            mat2.shape[:1],
        )
        return total + bias[out] if bias is not None else total

    return output
