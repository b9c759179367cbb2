"""Operators that capture keeps whole: experts, attention with sinks and windows, and recurrences
over the sequence (shardwise/capture/fused.py, shardwise/capture/scans.py)."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from shardwise.tdl.describe import Call, op
from shardwise.tdl.example import Example
from shardwise.tdl.language import Opaque, Sum, TensorHandle, apply, named


def _expert_flops(call: Call) -> tuple[float, float]:
    """Every row meets the matrix of its own expert."""
    forward = 2.0 * call.output_elements * call.shapes["input"][-1]
    return forward, forward * sum(n in call.differentiable for n in ("input", "weight"))


@op(
    "shardwise::expert_linear",
    saves=("input", "weight", "experts"),
    flops=_expert_flops,
    examples=[
        Example(
            {"input": (8, 2, 12), "weight": (4, 6, 12), "experts": (8, 2)},
            integers={"experts": 4},
        )
    ],
)
def expert_linear(
    input: TensorHandle, weight: TensorHandle, experts: TensorHandle
) -> Callable[..., Any]:
    """y[t, c, n] = Σ_{e, k} [experts[t, c] = e] x[t, c, k] w[e, n, k]: shares of experts add up"""
    return named(
        lambda t, c, n: Sum(
            named(
                lambda e, k: apply(experts[t, c]) * input[t, c, k] * weight[e, n, k],
                "expert",
                "in",
            ),
            (weight.shape[0], weight.shape[2]),
        ),
        "token",
        "copy",
        "out",
    )


def _sink_flops(call: Call) -> tuple[float, float]:
    """As attention's, of the keys up to each query and within its window."""
    query, keys, width = call.shapes["query"], call.shapes["key"][2], call.shapes["value"][-1]
    window, first = int(call.attributes["window"]), int(call.attributes["first"])
    rows = range(first + 1, first + query[2] + 1)
    seen = sum(min(row, keys, window or keys) for row in rows)
    forward = 2.0 * query[0] * query[1] * seen * (query[3] + width)
    return forward, 2.5 * forward


@op(
    "shardwise::sink_attention",
    saves=("query", "key", "value", "sinks", "output"),
    flops=_sink_flops,
    note="no scores are kept; keys after a query and before its window do not count",
    examples=[
        Example(
            {"query": (2, 4, 6, 8), "key": (2, 2, 6, 8), "value": (2, 2, 6, 8), "sinks": (4,)},
            {"scale": 0.25, "window": window, "first": 0},
        )
        for window in (0, 3)
    ],
)
def sink_attention(
    query: TensorHandle, key: TensorHandle, value: TensorHandle, sinks: TensorHandle
) -> Callable[..., Any]:
    """y[b, h, s, e] = attend(q[b, h, s, :], k[b, h/g, :, :], v[b, h/g, :, :], sinks[h])[e]"""
    attend, every = Opaque(), slice(None)
    group = query.shape[1] // key.shape[1]

    def output(*i: Any) -> Any:
        b, h, s, e = i
        of_group = h if group == 1 else h // group
        keys, values = (x[b, of_group, every, every] for x in (key, value))
        return attend(query[b, h, s, every], keys, values, sinks[h])[e]

    return named(output, "head", "query", "e")


def _scan_flops(call: Call) -> tuple[float, float]:
    """Per state and step: the decay's exponent, two products for the input, two for the state
    and one for the result, with three additions (Mamba, Algorithm 2)."""
    forward = 9.0 * prod(call.shapes["hidden"]) * call.shapes["A"][1]
    return forward, 2 * forward


@op(
    "shardwise::selective_scan",
    saves=("hidden", "dt", "A", "B", "C"),
    flops=_scan_flops,
    examples=[
        Example(
            {
                "hidden": (4, 6, 5),
                "dt": (4, 6, 5),
                "A": (6, 3),
                "B": (4, 3, 5),
                "C": (4, 3, 5),
            }
        )
    ],
)
def selective_scan(
    hidden: TensorHandle, dt: TensorHandle, A: TensorHandle, B: TensorHandle, C: TensorHandle
) -> Callable[..., Any]:
    """y[b, d, s] = scan(u[b, d, :], Δ[b, d, :], A[d, :], B[b, :, :], C[b, :, :])[s]"""
    scan = Opaque()
    every = slice(None)
    return lambda b, d, s: scan(
        hidden[b, d, every], dt[b, d, every], A[d, every], B[b, every, every], C[b, every, every]
    )[s]


_CHUNK = 64
"""Steps of a chunk in the kernels of fla; those of mamba_ssm compute as many flops per step with
their chunks of 256, half of each being masked."""


def _chunk_flops(call: Call) -> tuple[float, float]:
    """Of each step and head: the products with the steps of its chunk before it, and two with the
    state (Dao & Gu 2024, §6)."""
    *_, width = call.shapes["hidden"]
    state = call.shapes["B"][-1]
    steps = prod(call.shapes["hidden"]) / width
    forward = steps * (2.0 * 2 * _CHUNK * (state + width) + 2.0 * 2 * state * width)
    return forward, 2 * forward


@op(
    "shardwise::chunk_scan",
    saves=("hidden", "dt", "A", "B", "C"),
    flops=_chunk_flops,
    examples=[
        Example(
            {
                "hidden": (4, 5, 2, 3, 6),
                "dt": (4, 5, 2, 3),
                "A": (2, 3),
                "B": (4, 5, 2, 4),
                "C": (4, 5, 2, 4),
            }
        )
    ],
)
def chunk_scan(
    hidden: TensorHandle, dt: TensorHandle, A: TensorHandle, B: TensorHandle, C: TensorHandle
) -> Callable[..., Any]:
    """y[b, s, g, r, p] = scan(x[b, :, g, r, p], Δ[b, :, g, r], A[g, r], B[b, :, g], C[b, :, g])"""
    scan = Opaque()
    every = slice(None)
    return lambda b, s, g, r, p: scan(
        hidden[b, every, g, r, p],
        dt[b, every, g, r],
        A[g, r],
        B[b, every, g, every],
        C[b, every, g, every],
    )[s]


def _delta_flops(call: Call) -> tuple[float, float]:
    """Of each step and head: queries and keys with the keys of its chunk, the system that the rule
    solves in it, the values, and three products with the state (Yang et al. 2024, §3)."""
    *_, width = call.shapes["key"]
    *_, values = call.shapes["value"]
    steps = prod(call.shapes["value"]) / values
    in_chunk = 2.0 * _CHUNK * (2 * width + (width + values) / 2 + values)
    forward = steps * (in_chunk + 3 * 2.0 * width * values)
    return forward, 2 * forward


@op(
    "shardwise::gated_delta_rule",
    saves=("query", "key", "value", "g", "beta"),
    flops=_delta_flops,
    examples=[
        Example(
            {
                "query": (4, 5, 2, 6),
                "key": (4, 5, 2, 6),
                "value": (4, 5, 2, 3, 8),
                "g": (4, 5, 2, 3),
                "beta": (4, 5, 2, 3),
            }
        )
    ],
)
def gated_delta_rule(
    query: TensorHandle, key: TensorHandle, value: TensorHandle, g: TensorHandle, beta: TensorHandle
) -> Callable[..., Any]:
    """y[b, s, h, r, n] = rule(q[b, :, h], k[b, :, h], v[b, :, h, r, n], γ[b, :, h, r], β[…])"""
    rule = Opaque()
    every = slice(None)
    return lambda b, s, h, r, n: rule(
        query[b, every, h, every],
        key[b, every, h, every],
        value[b, every, h, r, n],
        g[(b, every, h, r, *[every] * (g.rank - 4))],
        beta[b, every, h, r],
    )[s]
