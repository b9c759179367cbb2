"""Answers prepared for their templates; members that a document lacks are left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

from msgspec import UNSET

from service.page.views.compared import compare_context
from service.page.views.piped import piped, words
from service.page.views.pipelined import pipeline_context
from service.page.views.plan_table import plan_context
from service.page.views.priced import pricing_context
from service.page.views.quoted import quote_context
from service.questions.pipelines import PIPELINE_SCHEMA
from shardwise import validation
from shardwise.answers.ranges import range_counts, range_reason
from shardwise.documents.curve import DoesNotFit
from shardwise.documents.frontier import REPLAYED, SUMS, axes_of

Prepare = Callable[[dict[str, Any]], dict[str, Any]]

MEMORY_PARTS = (
    ("parameter_bytes", "Parameters, gradients, optimizer state"),
    ("activation_bytes", "Activations"),
    ("rescheduled_bytes", "Tensors kept between operators"),
    ("fixed_bytes", "Constants"),
)
TIME_PARTS = (
    ("compute_s", "Compute"),
    ("synchronisation_s", "Synchronisation"),
    ("rescheduling_s", "Re-scheduling"),
)


def _exposed_s(point: dict[str, Any], time: str) -> float:
    """Returns the seconds that a point's devices wait for communication, in earlier documents for
    anything."""
    waiting = point.get("exposed_communication_s")
    return float(max(point[time] - point["compute_s"], 0.0) if waiting is None else waiting)


def frontier_context(result: dict[str, Any]) -> dict[str, Any]:
    """Returns the points in order, the data that scripts need, and the notable ones by name."""
    points, knee = result["points"], result.get("turning_point")
    ranking, time = _axes(result)
    # What fits is decided by the peak, so memory is the peak even where sums were searched.
    peaks = points and all(point.get(REPLAYED[0]) is not None for point in points)
    memory = REPLAYED[0] if peaks else ranking
    axes = {"replayed": (ranking, time) == REPLAYED, "memory": memory, "time": time}
    axes["peak"] = memory == REPLAYED[0]
    if axes["replayed"]:
        points = [{**p, "exposed_s": _exposed_s(p, time)} for p in points]
    fitting = [i for i, point in enumerate(points) if point.get("feasible", True)]
    every = range(len(points))
    fastest = min(fitting, key=lambda i: float(points[i][time]), default=None)
    outstanding = {
        "least memory": min(every, key=lambda i: float(points[i][memory]), default=None),
        "turning point": knee,
        "fastest that fits": fastest,
    }
    outstanding["fastest of all"] = len(points) - 1 if points else None
    names: dict[int, list[str]] = {}
    for name, index in outstanding.items():
        if index is not None:
            names.setdefault(index, []).append(name)
    start = fastest if fastest is not None else (knee or 0)
    pipelines = [{**one, "words": words(one)} for one in result.get("pipelines", [])]
    return {
        **axes,
        "points": points,
        "pipelines": pipelines,
        "names": {index: ", ".join(labels) for index, labels in names.items()},
        "start": start,
        "fitting": len(fitting),
        "shows": {
            key: key not in (memory, time) and any(point.get(key) is not None for point in points)
            for key in (*REPLAYED, SUMS[0], "gap")
        }
        | {"micro_batches": len({p.get("micro_batches", 1) for p in points} - {1}) > 0},
        "memory_parts": MEMORY_PARTS,
        "time_parts": TIME_PARTS,
        "data": {
            **axes,
            "points": points,
            "pipelines": pipelines,
            "knee": knee,
            "line": _staircase([(point[memory], point[time]) for point in points]),
            "start": start,
            "limit_bytes": result.get("memory_limit_bytes"),
            "memory_parts": MEMORY_PARTS,
            "time_parts": TIME_PARTS,
            "names": {str(index): ", ".join(labels) for index, labels in names.items()},
        },
    }


def _axes(result: dict[str, Any]) -> tuple[str, str]:
    """Returns the members, memory and time, in which the points of a frontier are ordered.

    Earlier versions ordered them by the sums with `overlap` too.
    """
    memory, time = axes = axes_of(bool(result.get("overlap")))
    costs = [(point.get(memory), point.get(time)) for point in result["points"]]
    if any(None in cost for cost in costs):
        return SUMS
    ordered = all(less[0] <= more[0] and less[1] >= more[1] for less, more in pairwise(costs))
    return axes if ordered else SUMS


def _staircase(costs: list[tuple[float, float]]) -> list[int]:
    """Returns the points that no other beats in both memory and time, by memory ascending."""
    line: list[int] = []
    for index in sorted(range(len(costs)), key=lambda i: costs[i]):
        if not line or costs[index][1] < costs[line[-1]][1]:
            line.append(index)
    return line


def curve_context(result: dict[str, Any]) -> dict[str, Any]:
    """Returns the points, and the counts worth mentioning."""
    _, time = axes_of(bool(result.get("overlap")))
    points = [piped(point, time) for point in result["points"]]
    fitting = [point for point in points if point["feasible"]]
    if any(point.get(time) is None for point in fitting):  # a curve of an earlier version
        _, time = SUMS
    return {
        "points": points,
        "rows": _curve_rows(points, result.get("does_not_fit")),
        "time": time,
        "fewest": fitting[0] if fitting else None,
        "fastest": min(fitting, key=lambda point: float(point[time])) if fitting else None,
        "infeasible": [point for point in points if not point["feasible"]],
        "samples": any(point.get("samples_per_s") is not None for point in points),
        "bundles": "bundles" in result,
        "prices": any(point.get("usd_per_hour") is not None for point in points),
        "missing": result.get("missing", []),
        "scales": any(point.get("efficiency") is not None for point in points),
        "data": {"points": points, "time": time, "most": result.get("max_gpus", 0)},
    }


def growing_curve(job: dict[str, Any]) -> dict[str, Any]:
    """Returns the curve of a job that is computed, as far as it is known."""
    overlap = job["question"].get("options", {}).get("overlap", False)
    return curve_context({"points": [], "overlap": overlap, **job.get("so_far", {})})


def _curve_rows(
    points: list[dict[str, Any]], ranges: list[dict[str, Any]] | None
) -> list[dict[str, Any]]:
    """Returns a row for each point that fits, with its position, and for each range of others."""
    if ranges is None:  # a curve of an earlier version
        ranges = [
            {"first": p["gpus"], "last": p["gpus"], "nearest_gpus": None, "least_bytes": None,
             "limit_bytes": None, "reason": p.get("reason", "nothing fits")}
            for p in points
            if not p["feasible"]
        ]  # fmt: skip
    rows = [
        {"at": p["gpus"], "index": i, "point": p} for i, p in enumerate(points) if p["feasible"]
    ]
    for document in ranges:
        run = validation.convert(document, DoesNotFit)
        gpus = range_counts(run) if run.bundle is UNSET else run.bundle
        words = {"gpus": gpus, "reason": range_reason(run)}
        rows.append({"at": run.first, "point": None, **words})
    return sorted(rows, key=lambda row: int(row["at"]))


CONTEXTS: Mapping[str, tuple[str, Prepare]] = {
    "frontier": ("frontier.html", frontier_context),
    "curve": ("curve.html", curve_context),
    "quote": ("quote.html", quote_context),
    "plan": ("plan.html", plan_context),
    "pricing": ("pricing.html", pricing_context),
    "compare": ("comparison.html", compare_context),
    "pipeline": ("pipeline.html", pipeline_context),
}
"""By the kind of the answer."""


def shown_as(kind: str, result: dict[str, Any]) -> tuple[str, Prepare]:
    """Returns the template of an answer to a question of a kind, and what prepares it."""
    return CONTEXTS["pipeline" if result["schema"] == PIPELINE_SCHEMA else kind]
