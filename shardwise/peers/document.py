"""The document `shardwise.compare/1`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict

from msgspec import UNSET
from msgspec.structs import asdict as members
from msgspec.structs import replace

from shardwise.answers.certificates import NOTHING, certificate
from shardwise.answers.frontier import heading
from shardwise.answers.mixed import bundle_of
from shardwise.documents.common import Certificate
from shardwise.documents.comparison import (
    ComparedMethod,
    ComparedPipeline,
    ComparedPoint,
    Comparison,
    CostBreakdown,
    ranked,
)
from shardwise.peers.answer import Answer
from shardwise.peers.evaluate import Piped, Point
from shardwise.search.search import Search

SPLITS, ALL = "splits", "all"
"""What strategies may choose: splits alone; ZeRO stages and recomputation too."""

OURS = {SPLITS: "shardwise-splits", ALL: "shardwise"}
"""The methods that are this system's."""

OUR_PIPELINES = "shardwise-pipelines"
"""The method that is this system's pipelines."""

DATA_PARALLEL = ("data-parallel", "ev-ar")
"""Plain data parallelism, on devices of one kind and of several."""

Round = tuple[str, list[Answer], Answer]
"""A space, the peers in it, and our own frontier of it."""


def compare_document(search: Search, rounds: Sequence[Round]) -> Comparison:
    """Returns a comparison; `search` is our search of splits, which all rounds share."""
    limit = search.limit_bytes
    methods = []
    for space, peers, own in rounds:

        def ours(point: Point, points: Sequence[Point] = own.points) -> Point | None:
            return fastest_within(points, point.memory_bytes)

        methods += [_method(answer, space, ours, limit) for answer in (*peers, own)]
    batch = next(a for _, peers, _ in rounds for a in peers if a.method == "data-parallel")
    return _of_the_searched(
        Comparison(
            **members(heading(search)),
            micro_batches=search.problem.context.micro_batches,
            methods=methods,
            data_parallel_over_mini_time={
                space: _ratio(batch.points, own.points, limit) for space, _, own in rounds
            },
        )
    )


def _of_the_searched(compared: Comparison) -> Comparison:
    """Returns a comparison without proofs of our answers where strategies were not searched."""
    if not compared.not_searched:
        return compared
    ours = (*OURS.values(), OUR_PIPELINES)
    methods = [
        replace(one, epsilon=None) if one.method in ours else one for one in compared.methods
    ]
    proof = UNSET if compared.certificate is UNSET else NOTHING
    return replace(compared, methods=methods, certificate=proof)


def replayed_document(
    searches: Sequence[Search],
    answers: Sequence[tuple[str, Answer]],
    proof: Certificate | None = None,
) -> Comparison:
    """Returns a comparison by replayed steps: answers with their spaces, our answer the last.

    Where there are pipelines of ours too, all are compared with the fastest of both.
    `searches` are those of our answer, `proof` what is proven of it if they have not found it.
    """
    limit = searches[0].limit_bytes
    single = fastest_within(answers[-1][1].points, limit)
    pipelines = [p for _, a in answers if a.method == OUR_PIPELINES for p in a.points]
    best = fastest_within([*answers[-1][1].points, *pipelines], limit)
    step = None if single is None else single.step
    methods = [_method(answer, space, lambda _: best, limit) for space, answer in answers]
    batch = [p for _, a in answers if a.method in DATA_PARALLEL for p in a.points]
    batch.sort(key=lambda point: (point.ranking_bytes > limit, point.ranking_s))
    own = {space: a.points for space, a in answers if a.method in OURS.values()}
    compared = Comparison(
        **members(heading(searches[0])),
        micro_batches=searches[0].micro_batches if step is None else step.micro_batches,
        methods=methods,
        data_parallel_over_mini_time={
            space: _ratio(batch, points, limit) for space, points in own.items()
        },
        certificate=proof or certificate(searches),
        bundle=bundle_of(searches[0]),
    )
    fitting = [method.method for method, point in ranked(compared) if point.feasible]
    return _of_the_searched(replace(compared, ranking=fitting))


def _method(
    answer: Answer,
    space: str,
    ours: Callable[[Point], Point | None],
    limit_bytes: float,
) -> ComparedMethod:
    points = [_point(point, ours(point), limit_bytes) for point in answer.points]
    fitting = [i for i, point in enumerate(points) if point.feasible]
    return ComparedMethod(
        method=answer.method,
        title=answer.title,
        space=space,
        found_by=answer.found_by,
        frontier=answer.frontier,
        epsilon=answer.epsilon,
        points=points,
        best=min(fitting, key=lambda i: answer.points[i].ranking_s, default=None),
        reason=answer.reason,
        notes=list(answer.notes),
        details=answer.details,
        seconds=answer.seconds,
    )


def _point(point: Point, ours: Point | None, limit_bytes: float) -> ComparedPoint:
    compared = ComparedPoint(
        label=point.label or None,
        memory_bytes=round(point.memory_bytes),
        time_s=point.time_s,
        compute_s=point.compute_s,
        communication_s=max(point.communication_s, 0.0),
        feasible=point.ranking_bytes <= limit_bytes,
        our_time_s=None if ours is None else ours.ranking_s,
        breakdown=CostBreakdown(**asdict(point.breakdown)),
    )
    if point.step is None:
        return compared
    replayed = replace(
        compared,
        micro_batches=point.step.micro_batches,
        replayed_peak_bytes=round(point.step.peak_bytes),
        replayed_time_s=point.step.time_s,
        exposed_communication_s=UNSET if point.step.exposed_s is None else point.step.exposed_s,
        pipeline=UNSET if point.piped is None else _pipeline(point.piped),
    )
    if point.by_sum:
        return replayed
    return replace(
        replayed,
        slower_by=None if ours is None else point.step.time_s / ours.ranking_s - 1.0,
        places=list(point.places) or UNSET,
    )


def _pipeline(piped: Piped) -> ComparedPipeline:
    peaks = [round(peak) for peak in piped.peak_bytes]
    each = piped.stages_per_rank
    return ComparedPipeline(
        len(peaks), piped.schedule, piped.idle, peaks, each if each > 1 else UNSET
    )


def fastest_within(own: Sequence[Point], memory_bytes: float) -> Point | None:
    """Returns our fastest point that takes no more memory than this, or None."""
    fitting = [point for point in own if point.ranking_bytes <= memory_bytes]
    return min(fitting, key=lambda point: point.ranking_s, default=None)


def _ratio(batch: Sequence[Point], own: Sequence[Point], limit_bytes: float) -> float | None:
    """Returns time of data parallelism ÷ our shortest that fits (TensorOpt Table 4)."""
    within = fastest_within(own, limit_bytes)
    return batch[0].ranking_s / within.ranking_s if within is not None and batch else None
