"""Comparisons prepared for their template: a row for each system, and the data of the plot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import UNSET

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
from shardwise.peers.document import ALL, OURS, SPLITS

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
    ours = next((row for row in fitting if row["best"]), None)
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
            "ours": method.method in OURS.values(),
            "best": method.method == OURS[ALL],
            "step_s": step_s,
            "slower": point.slower_by if isinstance(point.slower_by, float) else None,
            "peak_bytes": point.replayed_peak_bytes,
            "exposed_s": point.exposed_communication_s,
            "fits": point.feasible,
            "strategy": strategy_of(point),
            "bar": [*_parts(point, step_s, end)],
            "cut": step_s > end,
        }
        for (method, point), step_s in zip(best, steps, strict=True)
    ]


def _parts(point: ComparedPoint, step_s: float, end: float) -> Iterator[dict[str, Any]]:
    exposed_s = point.exposed_communication_s or 0.0
    compute = BAR * min(step_s - exposed_s, end) / end
    whole = BAR * min(step_s, end) / end
    yield {"name": "computes", "colour": "p0", "start": 0.0, "width": round(compute, 2)}
    yield {
        "name": "waits for communication", "colour": "p2",
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


def _places(document: Comparison) -> list[dict[str, Any]]:
    """Returns what the best step of each system takes at every place, of several kinds."""
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
    """Returns what the plot needs of a system."""

    def axes(point: ComparedPoint) -> tuple[float, float]:
        if document.overlap:
            return float(point.replayed_peak_bytes or 0), point.replayed_time_s or 0.0
        return float(point.memory_bytes), point.time_s

    return {
        "title": method.title,
        "ours": method.method in OURS.values(),
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
