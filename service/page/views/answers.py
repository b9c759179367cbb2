"""Answers prepared for their templates; members that a document lacks are left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

from msgspec import UNSET

from service.page.views.plan_table import plan_context
from service.page.views.quoted import quote_context
from shardwise import validation
from shardwise.advise.ranges import range_counts, range_reason
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


def frontier_context(result: dict[str, Any]) -> dict[str, Any]:
    """Returns the points in order, the data that scripts need, and the notable ones by name."""
    points, knee = result["points"], result.get("turning_point")
    memory, time = _axes(result)
    axes = {"replayed": (memory, time) == REPLAYED, "memory": memory, "time": time}
    if axes["replayed"]:
        points = [{**p, "exposed_s": max(p[time] - p["compute_s"], 0.0)} for p in points]
    fitting = [i for i, point in enumerate(points) if point.get("feasible", True)]
    outstanding = {"least memory": 0 if points else None, "turning point": knee}
    outstanding["fastest that fits"] = min(
        fitting, key=lambda i: float(points[i][time]), default=None
    )
    outstanding["fastest of all"] = len(points) - 1 if points else None
    names: dict[int, list[str]] = {}
    for name, index in outstanding.items():
        if index is not None:
            names.setdefault(index, []).append(name)
    start = knee if knee is not None else (fitting[-1] if fitting else 0)
    return {
        **axes,
        "points": points,
        "names": {index: ", ".join(labels) for index, labels in names.items()},
        "start": start,
        "fitting": len(fitting),
        "shows": {
            key: key not in (memory, time) and any(point.get(key) is not None for point in points)
            for key in (*REPLAYED, "gap")
        }
        | {"micro_batches": len({p.get("micro_batches", 1) for p in points} - {1}) > 0},
        "memory_parts": MEMORY_PARTS,
        "time_parts": TIME_PARTS,
        "data": {
            **axes,
            "points": points,
            "knee": knee,
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


def curve_context(result: dict[str, Any]) -> dict[str, Any]:
    """Returns the points, and the counts worth mentioning."""
    points = result["points"]
    fitting = [point for point in points if point["feasible"]]
    _, time = axes_of(bool(result.get("overlap")))
    if any(point.get(time) is None for point in fitting):  # a curve of an earlier version
        _, time = SUMS
    return {
        "points": points,
        "rows": _curve_rows(result),
        "time": time,
        "fewest": fitting[0] if fitting else None,
        "fastest": min(fitting, key=lambda point: float(point[time])) if fitting else None,
        "infeasible": [point for point in points if not point["feasible"]],
        "samples": any(point.get("samples_per_s") is not None for point in points),
        "bundles": "bundles" in result,
        "prices": any(point.get("usd_per_hour") is not None for point in points),
        "data": {"points": points, "time": time},
    }


def _curve_rows(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns a row for each point that fits, with its position, and for each range of others."""
    points = result["points"]
    ranges = result.get("does_not_fit")
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
}
