"""The step of a pipeline as lanes of bars for each stage, and what it holds, small enough to draw.

A lane has at most `MOST_BARS` bars, all lanes `MOST_OF_ALL` together: of a step with more passes
those in the middle are one bar for each stage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwise.answers.timeline import MOST_BARS
from shardwise.documents.timeline import Bar, Lane, PipelineTimeline, StageTimeline
from shardwise.pipeline.actions import Kind
from shardwise.search.pipelines.pipeline import Pipeline

MOST_OF_ALL = 16 * MOST_BARS
"""Bars of all stages together."""
FEWEST = 8
"""Passes of a stage that are drawn whatever the number of stages."""
STRETCHES = 100
"""Into how many stretches the memory of a stage over time is divided."""

NAMES = {
    "forward": "Forward",
    "backward": "Backward",
    "inputs": "Gradients of inputs",
    "weights": "Gradients of weights",
    "update": "Update",
    "compute": "More passes",
}
"""Kinds of lanes, in the order in which a stage has them."""


_KINDS = {
    Kind.FORWARD: "forward",
    Kind.BACKWARD: "backward",
    Kind.INPUTS: "inputs",
    Kind.WEIGHTS: "weights",
}


class _Pass(NamedTuple):
    kind: str
    start_s: float
    end_s: float
    busy_s: float


def pipeline_timeline(pipeline: Pipeline) -> PipelineTimeline:
    """Returns the step of a pipeline, from the first start to the end of the last update."""
    most = max(min(MOST_BARS, MOST_OF_ALL // pipeline.stages), FEWEST)
    stages = []
    for stage, rank in enumerate(pipeline.rank_of.tolist()):
        ran = zip(pipeline.order.ranks[rank], pipeline.passes.spans_s[rank], strict=True)
        own = [
            _Pass(_KINDS[one.kind], start, end, end - start)
            for one, (start, end) in ran
            if one.stage == stage
        ]
        shown = [*_fewer(own, most - 1), _update(pipeline, stage)]
        lanes = [_lane(kind, shown) for kind in NAMES]
        held = _held_bytes(pipeline, rank)
        stages.append(StageTimeline([lane for lane in lanes if lane.bars], held))
    return PipelineTimeline(_rounded(pipeline.step_s), stages)


def _update(pipeline: Pipeline, stage: int) -> _Pass:
    """Returns the update of a stage, after its rank's passes and the updates of the stages that the
    rank has before it."""
    rank = int(pipeline.rank_of[stage])
    before = [other for other in pipeline.placement.stages_of(rank) if other < stage]
    start = pipeline.passes.spans_s[rank][-1][1] + float(pipeline.update_s[before].sum())
    seconds = float(pipeline.update_s[stage])
    return _Pass("update", start, start + seconds, seconds)


def _fewer(passes: Sequence[_Pass], most: int) -> Iterator[_Pass]:
    """Yields at most `most` passes: where there are more, those in the middle are one."""
    if len(passes) <= most:
        yield from passes
        return
    head = most // 2
    tail = len(passes) - (most - 1 - head)
    middle = passes[head:tail]
    yield from passes[:head]
    busy_s = sum(one.busy_s for one in middle)
    yield _Pass("compute", middle[0].start_s, middle[-1].end_s, busy_s)
    yield from passes[tail:]


def _lane(kind: str, passes: Sequence[_Pass]) -> Lane:
    own = [one for one in passes if one.kind == kind and one.end_s > one.start_s]
    return Lane(
        name=NAMES[kind],
        kind=kind,
        busy_s=_rounded(sum(one.busy_s for one in own)),
        bars=[Bar(_rounded(a), _rounded(b), _rounded(busy)) for _, a, b, busy in own],
    )


def _held_bytes(pipeline: Pipeline, rank: int) -> list[int]:
    """Returns the most that a device of a rank may hold in each of `STRETCHES` parts of the step.

    A stage counts as running from the start of a pass until the next begins.
    """
    if not pipeline.step_s:
        return []
    moments, spans = pipeline.keeping.moments[rank], pipeline.passes.spans_s[rank]
    at_s = [0.0, *(spans[action][0] for action in moments.action.tolist()), spans[-1][1]]
    peaks = pipeline.rank_peaks[rank]
    held = peaks.at(moments)
    return _most(pipeline, at_s, np.concatenate([held[:1], held, [peaks.update_bytes]]))


def _most(pipeline: Pipeline, at_s: Sequence[float], sizes: NDArray[np.float64]) -> list[int]:
    """Returns the most in each of `STRETCHES` parts of the step, of what is held from moments."""
    times, edges = np.array(at_s), np.linspace(0.0, pipeline.step_s, STRETCHES + 1)
    most = []
    for left, right in pairwise(edges):
        first = int(np.searchsorted(times, left, side="right")) - 1
        last = int(np.searchsorted(times, right, side="left"))
        most.append(round(float(sizes[max(first, 0) : max(last, 1)].max())))
    return most


def _rounded(value: float) -> float:
    """Returns a number with as many digits as a chart can show."""
    return float(f"{value:.6g}")
