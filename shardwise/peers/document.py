"""The document `shardwise.compare/1`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from msgspec.structs import asdict as members

from shardwise.advise.frontier import heading
from shardwise.documents.comparison import (
    ComparedMethod,
    ComparedPoint,
    Comparison,
    CostBreakdown,
)
from shardwise.peers.answer import Answer
from shardwise.peers.evaluate import Point
from shardwise.search.search import Search

SPLITS, ALL = "splits", "all"
"""What strategies may choose: splits alone; ZeRO stages and recomputation too."""

Round = tuple[str, list[Answer], Answer]
"""A space, the peers in it, and our own frontier of it."""


def compare_document(search: Search, rounds: Sequence[Round]) -> Comparison:
    """Returns a comparison; `search` is our search of splits, which all rounds share."""
    limit = search.limit_bytes
    methods = []
    for space, peers, own in rounds:
        methods += [_method(answer, space, own.points, limit) for answer in (*peers, own)]
    batch = next(a for _, peers, _ in rounds for a in peers if a.method == "data-parallel")
    return Comparison(
        **members(heading(search)),
        micro_batches=search.problem.context.micro_batches,
        methods=methods,
        data_parallel_over_mini_time={
            space: _ratio(batch.points, own.points, limit) for space, _, own in rounds
        },
    )


def _method(answer: Answer, space: str, own: Sequence[Point], limit_bytes: float) -> ComparedMethod:
    points = [_point(point, own, limit_bytes) for point in answer.points]
    fitting = [i for i, point in enumerate(points) if point.feasible]
    return ComparedMethod(
        method=answer.method,
        title=answer.title,
        space=space,
        found_by=answer.found_by,
        frontier=answer.frontier,
        epsilon=answer.epsilon,
        points=points,
        best=min(fitting, key=lambda i: points[i].time_s, default=None),
        reason=answer.reason,
        notes=list(answer.notes),
        details=answer.details,
        seconds=answer.seconds,
    )


def _point(point: Point, own: Sequence[Point], limit_bytes: float) -> ComparedPoint:
    within = fastest_within(own, point.memory_bytes)
    return ComparedPoint(
        label=point.label or None,
        memory_bytes=round(point.memory_bytes),
        time_s=point.time_s,
        compute_s=point.compute_s,
        communication_s=max(point.communication_s, 0.0),
        feasible=point.memory_bytes <= limit_bytes,
        our_time_s=None if within is None else within.time_s,
        breakdown=CostBreakdown(**asdict(point.breakdown)),
    )


def fastest_within(own: Sequence[Point], memory_bytes: float) -> Point | None:
    """Returns our fastest point that takes no more memory than this, or None."""
    fitting = [point for point in own if point.memory_bytes <= memory_bytes]
    return min(fitting, key=lambda point: point.time_s, default=None)


def _ratio(batch: Sequence[Point], own: Sequence[Point], limit_bytes: float) -> float | None:
    """Returns time of data parallelism ÷ our shortest that fits (TensorOpt Table 4)."""
    within = fastest_within(own, limit_bytes)
    return batch[0].time_s / within.time_s if within is not None and batch else None
