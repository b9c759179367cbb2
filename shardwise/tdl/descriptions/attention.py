"""Attention as one operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shardwise.tdl.describe import Call, op, pointwise
from shardwise.tdl.descriptions.movement import first_dims
from shardwise.tdl.descriptions.normalisation import softmax
from shardwise.tdl.language import Constant, Merge, Opaque, TensorHandle, named


def _flops(call: Call) -> tuple[float, float]:
    """Two products forward; backward recomputes the scores and has four more (FlashAttention-2)."""
    query, key, value = (call.shapes[n] for n in ("query", "key", "value"))
    rows = 1
    for extent in query[:-1]:
        rows *= extent
    forward = 2.0 * rows * key[-2] * (query[-1] + value[-1])
    if call.attributes.get("is_causal"):
        forward /= 2
    return forward, 2.5 * forward


@op(
    "aten.scaled_dot_product_attention.default",
    saves=("query", "key", "value", "attn_mask", "output"),
    flops=_flops,
    note="no scores are kept (FlashAttention); causal counts half the scores",
)
def scaled_dot_product_attention(
    query: TensorHandle,
    key: TensorHandle,
    value: TensorHandle,
    attn_mask: TensorHandle | None = None,
    *,
    dropout_p: float = 0.0,
    is_causal: bool = False,
) -> Callable[..., Any]:
    """y[b, h, s, e] = merge_j attend(q[b, h, s, :], k[b, h/g, j, :], v[b, h/g, j, :])[e]

    Keys go round with the queries where both are one sequence and nothing but positions says which
    keys a query sees: a mask has columns of its own, and dropout draws by columns.
    """
    goes_round = attn_mask is None and not dropout_p and query.rank == 4
    return _attention(query, key, value, attn_mask, is_causal, goes_round)


def _attention(
    query: TensorHandle,
    key: TensorHandle,
    value: TensorHandle,
    attn_mask: TensorHandle | None,
    is_causal: bool = False,
    goes_round: bool = False,
) -> Callable[..., Any]:
    attend = Opaque()

    def output(*i: Any) -> Any:
        batch, row = i[:-2], i[-2]

        def grouped(tensor: TensorHandle) -> tuple[Any, ...]:
            return tuple(
                _grouped(x, q, t)
                for x, q, t in zip(batch, query.shape[:-2], tensor.shape[:-2], strict=True)
            )

        parts = [query[(*batch, row, slice(None))]]
        if attn_mask is not None:
            shape = attn_mask.shape
            outer = (*batch, row)[len(i) - 1 - (len(shape) - 1) :]
            fixed = tuple(0 if n == 1 else x for x, n in zip(outer, shape[:-1], strict=True))
            parts.append(attn_mask[(*fixed, slice(None))])

        def part(j: Any) -> Any:
            keys = key[(*grouped(key), j, slice(None))]
            return attend(*parts, keys, value[(*grouped(value), j, slice(None))])[i[-1]]

        return Merge(part, rows=row, together=goes_round, causal=is_causal)

    return named(output, "head", "query", "e")


def _grouped(index: Any, queries: int, keys: int) -> Any:
    """Grouped-query attention: several query heads read one key head."""
    if keys == queries:
        return index
    return 0 if keys == 1 else index // (queries // keys)


Parts = tuple[Callable[..., Any], Callable[..., Any]]


def _output_and_sums(
    query: TensorHandle, key: TensorHandle, value: TensorHandle, attn_mask: TensorHandle | None
) -> Parts:
    """The output, and per row the logarithm of the scores' sum."""
    output = _attention(query, key, value, attn_mask)

    def sums(*i: Any) -> Any:
        return output(*i, 0)

    return output, named(sums, "head", "query")


@op(
    "aten._scaled_dot_product_flash_attention.default",
    "aten._scaled_dot_product_flash_attention_for_cpu.default",
    "aten._scaled_dot_product_efficient_attention.default",
    "aten._scaled_dot_product_cudnn_attention.default",
    saves=("query", "key", "value", "attn_mask", "attn_bias", "output.0", "output.1"),
    flops=_flops,
    note="no scores are kept; seeds and offsets of random numbers are each device's own",
)
def fused_attention(
    query: TensorHandle,
    key: TensorHandle,
    value: TensorHandle,
    attn_mask: TensorHandle | None = None,
    attn_bias: TensorHandle | None = None,
    *,
    out: tuple[tuple[int, ...], ...],
) -> list[Callable[..., Any]]:
    """As scaled_dot_product_attention, with log Σ exp of each row's scores"""
    mask = attn_mask if attn_mask is not None else attn_bias
    output, sums = _output_and_sums(query, key, value, mask)
    rows = query.shape[:-1]

    def further(shape: tuple[int, ...]) -> Callable[..., Any]:
        return sums if shape == rows else lambda *i: Constant(0.0)

    return [output, *(further(shape) for shape in out[1:])]


@op(
    "aten._scaled_dot_product_attention_math.default",
    saves=("query", "key", "value", "attn_mask", "output.1"),
    flops=_flops,
    note="keeps the scores",
)
def attention_with_scores(
    query: TensorHandle,
    key: TensorHandle,
    value: TensorHandle,
    attn_mask: TensorHandle | None = None,
) -> list[Callable[..., Any]]:
    """y and the scores s[b, h, i, j] = softmax_j(q[b, h, i, :] · k[b, h, j, :])"""
    output, sums = _output_and_sums(query, key, value, attn_mask)
    return [output, named(lambda *i: sums(*i[:-1]), "head", "query", "key")]


@op(
    "aten._safe_softmax.default",
    category="light",
    saves=("output",),
    flops=pointwise(6.0),
)
def safe_softmax(self: TensorHandle, *, dim: int) -> Callable[..., Any]:
    """As softmax; rows that are masked altogether are zero"""
    return softmax(self, dim=dim)


@op(
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default",
    saves=(),
    flops=lambda call: (2.5 * _flops(call)[0], 0.0),
)
def attention_backward(
    query: TensorHandle,
    key: TensorHandle,
    value: TensorHandle,
    *rest: TensorHandle,
    out: tuple[tuple[int, ...], ...],
) -> list[Callable[..., Any]]:
    """Gradients of query, key and value, per sample and head"""
    step = Opaque()
    tensors = [t for t in (query, key, value, *rest) if t.rank >= 3]

    def gradient(*i: Any) -> Any:
        return step(*(first_dims(t, i[:2]) for t in tensors if t.shape[1] == query.shape[1]))

    grouped = key.shape[1] != query.shape[1]

    def in_groups(*i: Any) -> Any:
        return step(*(first_dims(t, i[:1]) for t in tensors))

    form = in_groups if grouped else gradient
    return [form if len(shape) == 4 else (lambda *i: Constant(0.0)) for shape in out]
