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

from shardwise.documents import Pipeline, Plan

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
    measured = {
        "iteration": typical,
        "compute": compute_s,
        "communication": communication_s,
        "peak": max(peak_bytes),
    }
    return _document(
        plan,
        iterations_s,
        compute_s=compute_s,
        communication_s=communication_s,
        exposed_s=None if compute_s is None else max(typical - compute_s, 0.0),
        peak_bytes=peak_bytes,
        errors={
            name: relative(measured[name], getattr(predicted, member))
            for name, member in PREDICTED.items()
        },
        backend=backend,
        device_kind=device_kind,
        versions=versions,
        calls=calls or {},
        fallbacks=fallbacks or {},
        compiled_operators=compiled_operators,
        not_compiled=not_compiled,
    )


def pipeline_measurement(
    pipeline: Pipeline,
    *,
    iterations_s: Sequence[float],
    waits_s: Sequence[Sequence[float]],
    compute_s: float,
    communication_s: float,
    peak_bytes: Sequence[int],
    backend: str,
    device_kind: str,
    versions: Mapping[str, str],
    fallbacks: Mapping[str, str],
) -> dict[str, Any]:
    """Returns the document of a run of this pipeline; seconds and bytes, peaks by rank.

    `waits_s` are by rank and step the seconds for which it waited for other stages. `stages` has
    what is known of each; `compute_s` and `communication_s` (inside stages) have no prediction.
    """
    predicted = pipeline.predicted
    typical = median(iterations_s)
    stages = []
    for number, stage in enumerate(pipeline.stages):
        ranks = range(stage.first_device, stage.first_device + stage.devices)
        peak = max(peak_bytes[rank] for rank in ranks)
        waits = [median(waits_s[rank]) / typical for rank in ranks if waits_s[rank]]
        idle = sum(waits) / len(waits) if waits else None
        stages.append(
            {
                "stage": number,
                "peak_bytes": peak,
                "predicted_peak_bytes": stage.peak_bytes,
                "peak_error": relative(peak, stage.peak_bytes),
                "idle": idle,
                "predicted_idle": stage.idle,
            }
        )
    document = _document(
        pipeline,
        iterations_s,
        compute_s=compute_s,
        communication_s=communication_s,
        exposed_s=None,
        peak_bytes=peak_bytes,
        errors={
            "iteration": relative(typical, predicted.step_s),
            "compute": None,
            "communication": None,
            "peak": relative(max(peak_bytes), predicted.peak_bytes),
        },
        backend=backend,
        device_kind=device_kind,
        versions=versions,
        calls={},
        fallbacks=fallbacks,
        compiled_operators=0,
        not_compiled=None,
    )
    return {**document, "stages": stages}


def _document(
    ran: Plan | Pipeline,
    iterations_s: Sequence[float],
    *,
    compute_s: float | None,
    communication_s: float | None,
    exposed_s: float | None,
    peak_bytes: Sequence[int],
    errors: Mapping[str, float | None],
    backend: str,
    device_kind: str,
    versions: Mapping[str, str],
    calls: Mapping[str, int],
    fallbacks: Mapping[str, str],
    compiled_operators: int,
    not_compiled: str | None,
) -> dict[str, Any]:
    """Returns the members that runs of plans and of pipelines have in common."""
    return {
        "schema": SCHEMA,
        "plan": ran.id,
        "graph": ran.graph,
        "graph_name": ran.graph_name,
        "hardware": ran.hardware,
        "hardware_id": ran.hardware_id,
        "gpus": ran.gpus,
        "nodes": ran.nodes,
        "steps": len(iterations_s),
        "iteration_s": _spread(iterations_s),
        "compute_s": compute_s,
        "communication_s": communication_s,
        "exposed_communication_s": exposed_s,
        "peak_bytes": {"max": max(peak_bytes), "per_rank": list(peak_bytes)},
        "predicted": to_builtins(ran.predicted),
        "errors": dict(errors),
        "backend": backend,
        "device_kind": device_kind,
        "versions": dict(versions),
        "collectives": dict(calls),
        "fallbacks": dict(fallbacks),
        "compiled_operators": compiled_operators,
        "not_compiled": not_compiled,
    }


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
