"""Points of curves over counts and over bundles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET, UnsetType
from msgspec.structs import asdict

from shardwise.answers.certificates import gap
from shardwise.answers.expected import expected_of
from shardwise.answers.frontier import confidence_of, heading
from shardwise.answers.summary import Summaries
from shardwise.cost.options import Progress, go_on
from shardwise.documents.curve import Curve, CurvePoint, CurveSearch, DoesNotFit
from shardwise.search.chosen import Chosen, lowest_peak
from shardwise.search.search import Search


def curve_of_point(
    point: CurvePoint,
    search: Search | None,
    per_point: Sequence[str],
    does_not_fit: Sequence[DoesNotFit],
) -> Curve:
    """Returns the curve of one point, with the heading of its search, or None without one.

    `per_point` are heading members specific to one point.
    """
    head: dict[str, Any] = {}
    seconds = 0.0
    if search is not None:
        seconds = float(search.solution.seconds)
        every = asdict(heading(search))
        head = {name: value for name, value in every.items() if name not in per_point}
    return Curve(
        **head,
        max_gpus=point.gpus,
        points=[point],
        search=CurveSearch(seconds),
        does_not_fit=list(does_not_fit),
        bundles=UNSET if point.bundle is UNSET else [point.bundle],
    )


def point_progress(progress: Progress, text: str, place: int, of: int) -> Progress:
    """Returns a point's progress callback as part of the curve's.

    Raises `Cancelled` if the curve was cancelled before.
    """

    def report(stage: str, fraction: float) -> bool:
        return progress(text, (place + fraction) / of)

    go_on(report, "", 0.0)
    return report


def feasible_point(chosen: Chosen, searches: Sequence[Search], gpus: int, nodes: int) -> CurvePoint:
    """Returns the point of the `chosen` strategy of `searches`."""
    search = chosen.search
    batch, shares = search.subject.graph.batch_size, search.compute_shares(chosen.point)
    return CurvePoint(
        gpus=gpus,
        nodes=nodes,
        feasible=True,
        time_s=chosen.time_s,
        replayed_time_s=chosen.replayed_time_s,
        samples_per_s=None if batch is None else batch / chosen.ranking_s,
        peak_bytes=round(chosen.peak_bytes),
        memory_bytes=round(chosen.memory_bytes),
        plan_id=search.plan_id(chosen.point),
        compute_shares=shares.document(),
        confidence=confidence_of(search, shares),
        micro_batches=search.micro_batches,
        gap=gap(searches, chosen),
        label=Summaries([search]).label(search, chosen.point),
        expected=expected_of(chosen),
    )


def least_bytes(searches: Sequence[Search]) -> int | UnsetType:
    """Returns the least peak found, unset without a strategy."""
    if not any(len(search.time_s) for search in searches):
        return UNSET
    return round(lowest_peak(searches).peak_bytes)


def infeasible_point(gpus: int, nodes: int | None, basis: str, reason: str) -> CurvePoint:
    """Returns the point of a count on which nothing fits; `basis` is the source of times."""
    return CurvePoint(
        gpus=gpus,
        nodes=nodes,
        feasible=False,
        time_s=None,
        replayed_time_s=None,
        samples_per_s=None,
        peak_bytes=None,
        memory_bytes=None,
        plan_id=None,
        compute_shares=None,
        confidence=basis,
        reason=reason,
    )
