"""Comparisons prepared for their template: a row for each system, and the data of the plot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import UNSET

from service.page.units import size
from shardwise import documents
from shardwise.documents import Comparison
from shardwise.documents.comparison import (
    ComparedMethod,
    ComparedPoint,
    best_of,
    ranked,
    shown,
    strategy_of,
)
from shardwise.peers.document import OUR_PIPELINES, OURS, SPLITS

_OURS = (*OURS.values(), OUR_PIPELINES)
MOST_PEAKS = 4
"""With more stages only the first, the last and the largest peak are shown."""
BAR = 100.0
"""Width of the longest bar, in units of its picture."""
LONGEST = 2.5
"""Bars end at this many times the shortest step."""


def compare_context(result: dict[str, Any]) -> dict[str, Any]:
    """Returns the rows, the fastest that fits first, our answer and what others lack."""
    document = documents.read(result, Comparison)
    rows = _ranking(document) if document.overlap else _sums(document)
    # Rows of replayed steps come by their rank.
    fitting = [row for row in rows if row["fits"]] if document.overlap else []
    ours = next((row for row in fitting if row["ours"]), None)
    nearest = next((row for row in fitting if not row["ours"]), None)
    bound = document.certificate.time_lower_bound_s if document.certificate else UNSET
    return {
        "replayed": document.overlap,
        "rows": rows,
        "ours": ours,
        "nearest": nearest,
        "gap": nearest["step_s"] / ours["step_s"] - 1.0 if ours and nearest else None,
        "missing": [
            {"title": one.title, "reason": one.reason}
            for one in document.methods
            if not one.points and one.reason
        ],
        "found": [
            {"title": one.title, "texts": [*filter(None, [one.found_by]), *one.notes]}
            for one in document.methods
            if one.points
        ],
        "pipelines": _pipelines(document),
        "whole": _is_proven_alone(document),
        "places": _places(document) if document.overlap else [],
        "data": {
            "replayed": document.overlap,
            "systems": [_drawn(document, method) for method in document.methods if method.points],
            "limit_bytes": document.memory_limit_bytes,
            "bound_s": bound if isinstance(bound, float) else None,
        },
    }


def _ranking(document: Comparison) -> list[dict[str, Any]]:
    """Returns the best of each system by its replayed step, with the parts of its bar."""
    best = ranked(document)
    steps = [point.replayed_time_s or 0.0 for _, point in best]
    end = min(max(steps, default=0.0), LONGEST * min(steps, default=0.0)) or 1.0
    return [
        {
            "title": method.title,
            "ours": method.method in _OURS,
            "step_s": step_s,
            "slower": point.slower_by if isinstance(point.slower_by, float) else None,
            "peak_bytes": point.replayed_peak_bytes,
            "waits_s": _waits_s(point),
            "fits": point.feasible,
            "strategy": strategy_of(point),
            "bar": [*_parts(point, step_s, end)],
            "cut": step_s > end,
        }
        for (method, point), step_s in zip(best, steps, strict=True)
    ]


def _waits_s(point: ComparedPoint) -> float:
    """Returns how long a device does not compute: what is exposed of its communication, or of a
    pipeline what it waits, in the mean over stages."""
    if point.pipeline:
        return point.pipeline.idle * (point.replayed_time_s or 0.0)
    return point.exposed_communication_s or 0.0


def _parts(point: ComparedPoint, step_s: float, end: float) -> Iterator[dict[str, Any]]:
    compute = BAR * min(step_s - _waits_s(point), end) / end
    whole = BAR * min(step_s, end) / end
    yield {"name": "computes", "colour": "p0", "start": 0.0, "width": round(compute, 2)}
    yield {
        "name": "waits", "colour": "p2",
        "start": round(compute, 2), "width": round(whole - compute, 2),
    }  # fmt: skip


def _sums(document: Comparison) -> list[dict[str, Any]]:
    return [
        {
            "title": ": ".join(filter(None, (method.title, label))),
            "ours": method.method in OURS.values(),
            "memory_bytes": point.memory_bytes,
            "time_s": point.time_s,
            "peak_bytes": point.replayed_peak_bytes or None,
            "step_s": point.replayed_time_s or None,
            "communication_s": point.communication_s,
            "fits": point.feasible,
            "our_time_s": point.our_time_s,
        }
        for method in document.methods
        for label, point in shown(method)
    ]


def _pipelines(document: Comparison) -> list[dict[str, Any]]:
    """Returns every system's pipelines, the best of each number of stages."""
    return [
        {
            "title": method.title,
            "first": number == 0,
            "of": len(piped),
            "strategy": strategy_of(point),
            "schedule": point.pipeline.schedule,
            "step_s": point.replayed_time_s or None,
            "idle": point.pipeline.idle,
            "peaks": _peaks(point.pipeline.peak_bytes),
            "fits": point.feasible,
        }
        for method in document.methods
        for piped in [[point for point in method.points if point.pipeline]]
        for number, point in enumerate(piped)
        if point.pipeline
    ]


def _peaks(peak_bytes: list[int]) -> str:
    """Returns the peaks of stages, of many the first, the last and the largest."""
    if len(peak_bytes) <= MOST_PEAKS:
        return ", ".join(map(size, peak_bytes))
    return f"{size(peak_bytes[0])} … {size(peak_bytes[-1])}, at most {size(max(peak_bytes))}"


def _is_proven_alone(document: Comparison) -> bool:
    """Returns whether the certificate holds for all that was compared: it is about strategies
    without a pipeline."""
    return all(method.method != OUR_PIPELINES for method in document.methods)


def _places(document: Comparison) -> list[dict[str, Any]]:
    """Returns each system's best step by place, on several kinds of devices."""
    return [
        {
            "title": method.title,
            "first": number == 0,
            "of": len(point.places or ()),
            "place": place.name,
            "kind": place.kind,
            "compute_s": place.compute_s,
            "communication_s": place.communication_s,
            "peak_bytes": place.peak_bytes,
            "limit_bytes": place.memory_limit_bytes,
        }
        for method, point in ranked(document)
        for number, place in enumerate(point.places or ())
    ]


def _drawn(document: Comparison, method: ComparedMethod) -> dict[str, Any]:
    """Returns a system's data for the plot."""

    def axes(point: ComparedPoint) -> tuple[float, float]:
        if document.overlap:
            return float(point.replayed_peak_bytes or 0), point.replayed_time_s or 0.0
        return float(point.memory_bytes), point.time_s

    return {
        "title": method.title,
        "ours": method.method in _OURS,
        "splits": method.method == OURS[SPLITS],
        "frontier": method.frontier,
        "best": best_of(method) if document.overlap else None,
        "points": [
            {
                "memory": axes(point)[0],
                "time": axes(point)[1],
                "label": strategy_of(point),
                "fits": point.feasible,
            }
            for point in method.points
        ],
    }
