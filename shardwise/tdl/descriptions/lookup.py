"""Reading rows by computed indices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shardwise.tdl.language import Opaque, Sum, TensorHandle, apply, named
from shardwise.tdl.registry import Call, no_flops, op


def _scatter_flops(call: Call) -> tuple[float, float]:
    return 0.0, float(call.output_elements)


@op("aten.embedding.default", saves=("indices",), flops=_scatter_flops)
def embedding(weight: TensorHandle, indices: TensorHandle) -> Callable[..., Any]:
    """y[i, h] = Σ_v [indices[i] = v] w[v, h]: a split vocabulary gives partial rows"""
    return lambda *i: Sum(
        named(lambda *v: apply(indices[i[:-1]]) * weight[(*v, i[-1])], "vocab"), weight.shape[:1]
    )


@op("aten.gather.default", category="light", saves=("index",), flops=no_flops)
def gather(self: TensorHandle, index: TensorHandle, *, dim: int) -> Callable[..., Any]:
    """y[i] = x[…, index[i], …]: the gathered dimension is needed whole"""
    at = dim % self.rank
    pick = Opaque()
    return lambda *i: pick(
        self[
            tuple(
                slice(None) if d == at or self.shape[d] != index.shape[d] else x
                for d, x in enumerate(i)
            )
        ],
        index[i],
    )


@op("aten.index_select.default", category="light", saves=("index",), flops=no_flops)
def index_select(self: TensorHandle, index: TensorHandle, *, dim: int) -> Callable[..., Any]:
    """y[…, i, …] = x[…, index[i], …]"""
    at = dim % self.rank
    pick = Opaque()
    return lambda *i: pick(
        self[tuple(slice(None) if d == at else x for d, x in enumerate(i))], index[i[at]]
    )
