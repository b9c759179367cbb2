"""Reading rows by computed indices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shardwise.tdl.descriptions.arguments import dim_of
from shardwise.tdl.language import NotCovered, Opaque, Sum, TensorHandle, apply, named
from shardwise.tdl.registry import Call, no_flops, op


def _scatter_flops(call: Call) -> tuple[float, float]:
    return 0.0, float(call.output_elements)


@op("aten.embedding.default", saves=("indices",), flops=_scatter_flops)
def embedding(weight: TensorHandle, indices: TensorHandle) -> Callable[..., Any]:
    """y[i, h] = Σ_v [indices[i] = v] w[v, h]: a split vocabulary gives partial rows"""
    return lambda *i: Sum(
        named(lambda *v: apply(indices[i[:-1]]) * weight[(*v, i[-1])], "vocab"), weight.shape[:1]
    )


@op("aten.gather.default", category="light", saves=("self", "index"), flops=no_flops)
def gather(self: TensorHandle, index: TensorHandle, *, dim: int) -> Callable[..., Any]:
    """y[i] = x[…, index[i], …]: the gathered dimension is needed whole"""
    at = dim_of(dim, self.rank)
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
    at = dim_of(dim, self.rank)
    pick = Opaque()
    return lambda *i: pick(
        self[tuple(slice(None) if d == at else x for d, x in enumerate(i))], index[i[at]]
    )


@op("aten.index.Tensor", category="light", saves=("indices",), flops=no_flops)
def index(self: TensorHandle, indices: list[TensorHandle | None]) -> Callable[..., Any]:
    """y[…, i…, …] = x[…, a[i…], b[i…], …]: indexed dimensions are needed whole"""
    given = {d: t for d, t in enumerate(indices) if t is not None}
    if not given or max(given) >= self.rank:
        raise NotCovered("indices for dimensions that are not there")
    # The indices' own dimensions stand where the indexed ones stood, or first if those are apart.
    rank = max(t.rank for t in given.values())
    adjacent = max(given) - min(given) + 1 == len(given)
    start = min(given) if adjacent else 0
    pick = Opaque()

    def output(*i: Any) -> Any:
        chosen = i[start : start + rank]
        others = iter((*i[:start], *i[start + rank :]))
        places = tuple(slice(None) if d in given else next(others) for d in range(self.rank))
        return pick(self[places], *(t.at(chosen) for t in given.values()))

    return output
