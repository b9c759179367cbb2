"""Attention as one operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shardwise.tdl.language import Opaque, TensorHandle, named
from shardwise.tdl.registry import Call, op


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
) -> Callable[..., Any]:
    """y[b, h, s, e] = attend(q[b, h, s, :], k[b, h/g, :, :], v[b, h/g, :, :])[e]"""
    attend = Opaque()

    def output(*i: Any) -> Any:
        batch, row = i[:-2], i[-2]

        def grouped(tensor: TensorHandle) -> tuple[Any, ...]:
            return tuple(
                _grouped(x, q, t)
                for x, q, t in zip(batch, query.shape[:-2], tensor.shape[:-2], strict=True)
            )

        parts = [
            query[(*batch, row, slice(None))],
            key[(*grouped(key), slice(None), slice(None))],
            value[(*grouped(value), slice(None), slice(None))],
        ]
        if attn_mask is not None:
            shape = attn_mask.shape
            outer = (*batch, row)[len(i) - 1 - (len(shape) - 1) :]
            fixed = tuple(0 if n == 1 else x for x, n in zip(outer, shape[:-1], strict=True))
            parts.append(attn_mask[(*fixed, slice(None))])
        return attend(*parts)[i[-1]]

    return named(output, "head", "query", "e")


def _grouped(index: Any, queries: int, keys: int) -> Any:
    """Grouped-query attention: several query heads read one key head."""
    if keys == queries:
        return index
    return 0 if keys == 1 else index // (queries // keys)
