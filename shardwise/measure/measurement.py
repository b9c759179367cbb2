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
    "iteration": ("replayed_time_s", "step_s"),
    "compute": ("compute_s",),
    "communication": ("communication_s",),
    "peak": ("peak_bytes",),
}
"""The member of a plan's `predicted` that each error is relative to, by its names in both forms of
plans. A pipeline predicts the step and the peak alone."""


def predicted_values(predicted: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what a plan predicts of each member of `PREDICTED`, None of those that it does not
    predict."""
    return {
        name: next((predicted[member] for member in members if member in predicted), None)
        for name, members in PREDICTED.items()
    }


def measurement_document(
    plan: Plan,
    *,
    iterations_s: Sequence[float],
    waits_s: Sequence[Sequence[float]] = (),
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
    """Returns the document of a run of this plan or pipeline; seconds and bytes, peaks by rank.

    `waits_s` are by rank and step the seconds for which it waited for other stages. Of a pipeline
    `stages` has what is known of each, communication is that inside stages, and collectives, which
    are others on each rank, are left out. `not_compiled` says why a plan for compiled kernels ran
    eagerly, if it did.
    """
    predicted = to_builtins(plan.predicted)
    expected = predicted_values(predicted)
    typical = median(iterations_s)
    measured = {
        "iteration": typical,
        "compute": compute_s,
        "communication": communication_s,
        "peak": max(peak_bytes),
    }
    exposed_s = None if plan.piped or compute_s is None else max(typical - compute_s, 0.0)
    document = {
        "schema": SCHEMA,
        "plan": plan.id,
        "graph": plan.graph,
        "graph_name": plan.graph_name,
        "hardware": plan.hardware,
        "hardware_id": plan.hardware_id,
        "gpus": plan.gpus,
        "nodes": plan.nodes,
        "steps": len(iterations_s),
        "iteration_s": _spread(iterations_s),
        "compute_s": compute_s,
        "communication_s": communication_s,
        "exposed_communication_s": exposed_s,
        "peak_bytes": {"max": max(peak_bytes), "per_rank": list(peak_bytes)},
        "predicted": predicted,
        "errors": {name: relative(measured[name], expected[name]) for name in PREDICTED},
        "backend": backend,
        "device_kind": device_kind,
        "versions": dict(versions),
        "collectives": {} if plan.piped else dict(calls or {}),
        "fallbacks": dict(fallbacks or {}),
        "compiled_operators": compiled_operators,
        "not_compiled": not_compiled,
    }
    if plan.piped:
        document["stages"] = _stages(plan, typical, waits_s, peak_bytes)
    return document


def _stages(
    plan: Plan,
    typical_s: float,
    waits_s: Sequence[Sequence[float]],
    peak_bytes: Sequence[int],
) -> list[dict[str, Any]]:
    """Returns each stage's peak and idle share, measured and predicted."""
    stages = []
    for number, stage in enumerate(plan.stages):
        ranks = range(stage.first_device, stage.first_device + stage.devices)
        peak = max(peak_bytes[rank] for rank in ranks)
        waits = [median(waits_s[rank]) / typical_s for rank in ranks if waits_s[rank]]
        stages.append(
            {
                "stage": number,
                "peak_bytes": peak,
                "predicted_peak_bytes": stage.peak_bytes,
                "peak_error": relative(peak, stage.peak_bytes),
                "idle": sum(waits) / len(waits) if waits else None,
                "predicted_idle": stage.idle,
            }
        )
    return stages


def _spread(iterations_s: Sequence[float]) -> dict[str, Any]:
    """Returns the median and deciles of some seconds, and the first of them."""
    typical = median(iterations_s)
    low = high = typical
    if len(iterations_s) > 1:
        cuts = quantiles(iterations_s, n=10, method="inclusive")
        low, high = cuts[0], cuts[-1]
    return {"median": typical, "p10": low, "p90": high, "all": list(iterations_s[:MOST_STEPS])}


def relative(measured: float | None, predicted: float | None) -> float | None:
    """Returns measured over predicted, minus 1; None if either is missing or predicted is 0."""
    if measured is None or not predicted:
        return None
    return measured / predicted - 1.0
