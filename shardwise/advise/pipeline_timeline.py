"""The step of a pipeline as lanes of bars for each stage, and what it holds, small enough to draw.

A lane has at most `MOST_BARS` bars, all lanes `MOST_OF_ALL` together: of a step with more passes
those in the middle are one bar for each stage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from shardwise.advise.timeline import MOST_BARS
from shardwise.documents.timeline import Bar, Lane, PipelineTimeline, StageTimeline
from shardwise.pipeline.actions import Kind
from shardwise.pipeline.simulate import Held
from shardwise.search.pipelines.pipeline import Pipeline

MOST_OF_ALL = 16 * MOST_BARS
"""Bars of all stages together."""
FEWEST = 8
"""Passes of a stage that are drawn whatever the number of stages."""
STRETCHES = 100
"""Into how many stretches the memory of a stage over time is divided."""

NAMES = {"forward": "Forward", "backward": "Backward", "update": "Update", "compute": "More passes"}
"""Kinds of lanes, in the order in which a stage has them."""


class _Pass(NamedTuple):
    kind: str
    start_s: float
    end_s: float
    busy_s: float


def pipeline_timeline(pipeline: Pipeline) -> PipelineTimeline:
    """Returns the step of a pipeline, from the first start to the end of the last update."""
    passes, actions = pipeline.passes, pipeline.order.ranks
    most = max(min(MOST_BARS, MOST_OF_ALL // pipeline.stages), FEWEST)
    stages = []
    for stage, (spans, rank) in enumerate(zip(passes.spans_s, actions, strict=True)):
        kinds = ["forward" if one.kind is Kind.FORWARD else "backward" for one in rank]
        shown = list(
            _fewer(
                [_Pass(kind, a, b, b - a) for kind, (a, b) in zip(kinds, spans, strict=True)],
                most - 1,
            )
        )
        end, update_s = spans[-1][1], float(pipeline.update_s[stage])
        shown.append(_Pass("update", end, end + update_s, update_s))
        lanes = [_lane(kind, shown) for kind in NAMES]
        held = _held_bytes(pipeline, stage, passes.held[stage])
        stages.append(StageTimeline([lane for lane in lanes if lane.bars], held))
    return PipelineTimeline(_rounded(pipeline.step_s), stages)


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


def _held_bytes(pipeline: Pipeline, stage: int, held: Sequence[Held]) -> list[int]:
    """Returns the most that a device of a stage may hold in each of `STRETCHES` parts of the step:
    (max(k, 1) - 1) further micro-batches on the peak of one, the tensors that came in for k, and
    what is on the way.
    """
    if not pipeline.step_s:
        return []
    at_s = np.array([one.at_s for one in held])
    kept = np.array([one.kept for one in held])
    edges = np.linspace(0.0, pipeline.step_s, STRETCHES + 1)
    most = []
    for left, right in pairwise(edges):
        first = int(np.searchsorted(at_s, left, side="right")) - 1
        last = int(np.searchsorted(at_s, right, side="left"))
        most.append(kept[max(first, 0) : max(last, 1)].max())
    k = np.array(most)
    further = np.maximum(k - 1, 0) * pipeline.replayed.kept_bytes[stage]
    size = pipeline.replayed.peak_bytes[stage] + further + k * pipeline.incoming_bytes[stage]
    size += pipeline.on_the_way_bytes[stage]
    return [round(one) for one in size.tolist()]


def _rounded(value: float) -> float:
    """Returns a number with as many digits as a chart can show."""
    return float(f"{value:.6g}")
