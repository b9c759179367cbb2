"""The Gantt chart of a pipeline's step: a row for each stage, with its passes and what it holds.

`pipeline_svg` is for pages, as `gantt_svg` is of plans; `pipeline_picture` is what commands write.
"""

from __future__ import annotations

from html import escape

from msgspec import UNSET

from shardwise.documents.pipeline import Pipeline
from shardwise.documents.timeline import PipelineTimeline, StageTimeline
from shardwise.errors import BadInput
from shardwise.pictures.figure import BLUE, Picture
from shardwise.pictures.gantt import (
    BAR,
    BELOW,
    COLOURS,
    FAINTEST,
    GIB,
    LANE,
    LEFT,
    TOP,
    WIDTH,
    bar_mark,
    bar_text,
    busy_share,
    grid,
    label,
    scale,
)
from shardwise.texts import counted, gib, seconds

HELD = 22.0
"""Height of the memory of a stage."""
MOST_INCHES = 40.0
"""Height of a picture that a command writes."""


def timeline_of(pipeline: Pipeline) -> PipelineTimeline:
    """Returns a pipeline's step over time. Raises `BadInput` for a document of an earlier version,
    which has none, and for one whose stages it does not fit."""
    if pipeline.timeline is UNSET:
        raise BadInput(
            "the pipeline was made by an earlier version, which kept no step over time",
            field="timeline",
            expected="a pipeline of this version",
        )
    if len(pipeline.timeline.stages) != len(pipeline.stages):
        raise BadInput(
            f"{len(pipeline.timeline.stages)} stages",
            field="timeline.stages",
            expected=f"{len(pipeline.stages)}, as many as the pipeline has",
        )
    for stage, of_stage in enumerate(pipeline.timeline.stages):
        for number, lane in enumerate(of_stage.lanes):
            if lane.kind not in COLOURS:
                raise BadInput(
                    f"unknown kind {lane.kind[:40]!r}",
                    field=f"timeline.stages[{stage}].lanes[{number}].kind",
                    expected=", ".join(COLOURS),
                )
    return pipeline.timeline


def merged(timeline: PipelineTimeline) -> bool:
    """Returns whether some bars stand for several passes."""
    return any(lane.kind == "compute" for stage in timeline.stages for lane in stage.lanes)


def pipeline_summary(pipeline: Pipeline) -> str:
    """Returns the chart in a sentence, for those who do not see it."""
    waits = ", ".join(f"{n} {stage.idle:.1%}" for n, stage in enumerate(pipeline.stages))
    return (
        f"Gantt chart of a step of {seconds(pipeline.predicted.step_s)} in "
        f"{counted(len(pipeline.stages), 'stage')}. Share of the step in which each waits: {waits}."
    )


def pipeline_svg(pipeline: Pipeline) -> str:
    """Returns the chart as an `svg` element without styles. Raises as `timeline_of`."""
    timeline = timeline_of(pipeline)
    x_of = scale(timeline.step_s)
    row = LANE + HELD
    floor = TOP + row * len(timeline.stages)
    most = max((size for stage in timeline.stages for size in stage.held_bytes), default=1) or 1
    parts = [*grid(x_of, timeline.step_s, floor)]
    for number, stage in enumerate(timeline.stages):
        y = TOP + row * number
        idle = pipeline.stages[number].idle
        parts.append(label(LEFT - 8, y + LANE / 2 + 4, f"Stage {number}, waits {idle:.0%}", "end"))
        parts += [
            bar_mark(x_of, lane, bar, y + (LANE - BAR) / 2)
            for lane in stage.lanes
            for bar in lane.bars
        ]
        peak = f"peak {gib(pipeline.stages[number].peak_bytes)} GiB"
        parts.append(label(LEFT - 8, y + row - 6, peak, "end"))
        parts.append(_held(stage, x_of(timeline.step_s), y + row - 2, most))
    return (
        f'<svg class="gantt" viewBox="0 0 {WIDTH:.0f} {floor + BELOW:.0f}" role="img" '
        f'aria-label="{escape(pipeline_summary(pipeline))}">{"".join(parts)}</svg>'
    )


def _held(stage: StageTimeline, right: float, floor: float, most: float) -> str:
    """Returns what a stage holds over time, as high as its share of `most` bytes."""
    wide = (right - LEFT) / max(len(stage.held_bytes), 1)
    steps = " ".join(
        f"{LEFT + n * wide:.1f},{y:.1f} {LEFT + (n + 1) * wide:.1f},{y:.1f}"
        for n, y in enumerate(floor - (HELD - 4) * size / most for size in stage.held_bytes)
    )
    return (
        f'<polygon class="memory" points="{LEFT},{floor:.1f} {steps} {right:.1f},{floor:.1f}" '
        f'fill="{BLUE}" fill-opacity="0.3"/>'
    )


def pipeline_picture(pipeline: Pipeline) -> Picture:
    """Returns the stages' passes over time, and below what a device of each holds.

    Raises as `timeline_of`.
    """
    timeline = timeline_of(pipeline)
    rows = len(timeline.stages)
    title = (
        f"{pipeline.graph_name} on {counted(pipeline.gpus, 'GPU')} of {pipeline.hardware}: "
        f"a step of {counted(rows, 'stage')}, {pipeline.schedule}"
    )
    height = min(4.5 + 0.45 * rows, MOST_INCHES)
    picture = Picture(title, (9, height), layout="constrained")
    lanes, memory = picture.figure.subplots(2, 1, height_ratios=(0.8 + 0.45 * rows, 2.6))
    lanes.set_title(title, fontsize=10)
    unit, factor = ("seconds", 1.0) if timeline.step_s >= 1.0 else ("milliseconds", 1e3)
    seen: set[str] = set()
    for number, stage in enumerate(timeline.stages):
        for lane in stage.lanes:
            for bar in lane.bars:
                lanes.broken_barh(
                    [(bar.start_s * factor, (bar.end_s - bar.start_s) * factor)],
                    (number - 0.36, 0.72), color=COLOURS[lane.kind], edgecolor="white",
                    alpha=FAINTEST + (1.0 - FAINTEST) * busy_share(bar), linewidth=0.3,
                    label=None if lane.kind in seen else lane.name,
                )  # fmt: skip
                seen.add(lane.kind)
            picture.show_texts(
                lanes,
                (
                    ((bar.start_s + bar.end_s) / 2 * factor, float(number), bar_text(lane, bar))
                    for bar in lane.bars
                ),
            )
        wide = timeline.step_s * factor / max(len(stage.held_bytes), 1)
        memory.stairs(
            [size / GIB for size in stage.held_bytes],
            [n * wide for n in range(len(stage.held_bytes) + 1)],
            baseline=None,
            label=f"stage {number}",
        )
    names = [f"stage {n}, waits {stage.idle:.0%}" for n, stage in enumerate(pipeline.stages)]
    lanes.set_yticks(range(rows), names, fontsize=8)
    lanes.set_ylim(rows - 0.5, -0.5)
    note = "; pale bars are many passes" if merged(timeline) else ""
    lanes.set_xlabel(f"{unit} of the step{note}")
    lanes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    limit = pipeline.memory_limit_bytes
    if limit <= 1.5 * pipeline.predicted.peak_bytes:
        memory.axhline(limit / GIB, color="grey", linestyle="--", linewidth=1)
    memory.set_ylabel("GiB of one GPU, at most", fontsize=8)
    memory.set_xlabel(unit)
    memory.set_ylim(bottom=0)
    if rows <= 16:
        memory.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    for axes in (lanes, memory):
        axes.set_xlim(0, timeline.step_s * factor)
        axes.grid(alpha=0.3, axis="x")
    return picture
