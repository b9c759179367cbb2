"""`shardwise.measurement/1`: what a run measured, and what its plan predicted.

An error is measured over predicted, minus 1. The predicted iteration time is the replayed one, in
which communication overlaps computation, as it does in a real step; compute and communication are
the plan's sums; the peak is the replayed one (docs/replay.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median, quantiles
from typing import Any

from msgspec import to_builtins

from shardwise.documents import Plan

SCHEMA = "shardwise.measurement/1"
MOST_STEPS = 1000
PREDICTED = {
    "iteration": "replayed_time_s",
    "compute": "compute_s",
    "communication": "communication_s",
    "peak": "peak_bytes",
}
"""The member of a plan's `predicted` that each error is relative to."""


def measurement_document(
    plan: Plan,
    *,
    iterations_s: Sequence[float],
    compute_s: float | None,
    communication_s: float | None,
    peak_bytes: Sequence[int],
    backend: str,
    device_kind: str,
    versions: Mapping[str, str],
    calls: Mapping[str, int] | None = None,
    fallbacks: Mapping[str, str] | None = None,
    compiled_operators: int = 0,
    not_compiled: str | None = None,
) -> dict[str, Any]:
    """Returns the document of a run of this plan; seconds and bytes.

    `not_compiled` says why a plan for compiled kernels ran eagerly, if it did.
    """
    predicted = plan.predicted
    typical = median(iterations_s)
    low = high = typical
    if len(iterations_s) > 1:
        cuts = quantiles(iterations_s, n=10, method="inclusive")
        low, high = cuts[0], cuts[-1]
    measured = {
        "iteration": typical,
        "compute": compute_s,
        "communication": communication_s,
        "peak": max(peak_bytes),
    }
    return {
        "schema": SCHEMA,
        "plan": plan.id,
        "graph": plan.graph,
        "graph_name": plan.graph_name,
        "hardware": plan.hardware,
        "hardware_id": plan.hardware_id,
        "gpus": plan.gpus,
        "nodes": plan.nodes,
        "steps": len(iterations_s),
        "iteration_s": {
            "median": typical,
            "p10": low,
            "p90": high,
            "all": list(iterations_s[:MOST_STEPS]),
        },
        "compute_s": compute_s,
        "communication_s": communication_s,
        "exposed_communication_s": None if compute_s is None else max(typical - compute_s, 0.0),
        "peak_bytes": {"max": max(peak_bytes), "per_rank": list(peak_bytes)},
        "predicted": to_builtins(predicted),
        "errors": {
            name: relative(measured[name], getattr(predicted, member))
            for name, member in PREDICTED.items()
        },
        "backend": backend,
        "device_kind": device_kind,
        "versions": dict(versions),
        "collectives": dict(calls or {}),
        "fallbacks": dict(fallbacks or {}),
        "compiled_operators": compiled_operators,
        "not_compiled": not_compiled,
    }


def relative(measured: float | None, predicted: float | None) -> float | None:
    """Returns measured over predicted, minus 1; None if either is missing or predicted is 0."""
    if measured is None or not predicted:
        return None
    return measured / predicted - 1.0
