"""The Gantt chart of a pipeline's step: a row for each rank, with its passes and what it holds.

Where a rank has several stages, bars say which of them they are of, and later ones are paler. Bars
that stand for many passes overlap there: each stage has a strip of the row for its own.

`pipeline_svg` is for pages, as `gantt_svg` is of plans; `pipeline_picture` is what commands write.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import UNSET

from shardwise.documents.pipeline import Pipeline
from shardwise.documents.timeline import PipelineTimeline
from shardwise.errors import BadInput
from shardwise.pictures.figure import Picture
from shardwise.pictures.gantt import (
    COLOURS,
    GIB,
    TOP,
    Mark,
    Row,
    bar_text,
    chart,
    draw_rows,
    grid,
    row_height,
    row_parts,
    scale,
    unit_of,
)
from shardwise.texts import counted, gib, seconds

PALEST = 0.55
"""How opaque the bars of a rank's last stage are, of those of its first."""
MOST_NAMED = 4
"""Stages of a rank that are named at its row; of more the first two and the last."""
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


def _ranks(pipeline: Pipeline) -> list[list[int]]:
    """Returns the stages of each rank, those of the first devices first."""
    firsts = sorted({stage.first_device for stage in pipeline.stages})
    return [
        [n for n, stage in enumerate(pipeline.stages) if stage.first_device == first]
        for first in firsts
    ]


def rows_of(pipeline: Pipeline) -> list[Row]:
    """Returns a row for each rank, with its passes and what it holds. Raises as `timeline_of`."""
    timeline = timeline_of(pipeline)
    return [
        Row(
            *_names(pipeline, rank, stages),
            marks=[*_marks(stages, timeline)],
            below=_below(pipeline, stages),
            held_bytes=timeline.stages[stages[0]].held_bytes,
        )
        for rank, stages in enumerate(_ranks(pipeline))
    ]


def _names(pipeline: Pipeline, rank: int, stages: list[int]) -> tuple[str, str]:
    """Returns what a rank's row is called on a page, and in a picture, of several stages in two
    lines."""
    waits = f"waits {pipeline.stages[stages[0]].idle:.0%}"
    if len(stages) == 1:
        return f"Stage {stages[0]}, {waits}", f"stage {stages[0]}, {waits}"
    named = [str(stage) for stage in stages]
    if len(named) > MOST_NAMED:
        named = [*named[:2], "…", named[-1]]
    name = f"Rank {rank}: stages {', '.join(named)}"
    return name, f"{name}\n{waits}"


def _below(pipeline: Pipeline, stages: list[int]) -> str:
    """Returns what a rank's devices hold at most; of several stages also what they wait."""
    of = pipeline.stages[stages[0]]
    peak = f"peak {gib(of.peak_bytes)} GiB"
    return peak if len(stages) == 1 else f"waits {of.idle:.0%}, {peak}"


def _marks(stages: list[int], timeline: PipelineTimeline) -> Iterator[Mark]:
    """Yields the bars of a rank. A device runs one pass at a time, so only those that are many
    passes overlap."""
    each = len(stages)
    for place, stage in enumerate(stages):
        opacity = 1.0 - (1.0 - PALEST) * place / max(each - 1, 1)
        of, number = (f" (stage {stage})", str(stage)) if each > 1 else ("", "")
        for lane in timeline.stages[stage].lanes:
            top, height = (place / each, 1.0 / each) if lane.kind == "compute" else (0.0, 1.0)
            for bar in lane.bars:
                yield Mark(lane, bar, bar_text(lane, bar, of), top, height, opacity, number)


def pipeline_summary(pipeline: Pipeline) -> str:
    """Returns the chart in a sentence, for those who do not see it."""
    ranks, stages = _ranks(pipeline), counted(len(pipeline.stages), "stage")
    waits = ", ".join(
        f"{rank} {pipeline.stages[own[0]].idle:.1%}" for rank, own in enumerate(ranks)
    )
    of = f" on {counted(len(ranks), 'rank')}" if len(ranks) < len(pipeline.stages) else ""
    return (
        f"Gantt chart of a step of {seconds(pipeline.predicted.step_s)} in {stages}{of}. "
        f"Share of the step in which each {'rank' if of else 'stage'} waits: {waits}."
    )


def pipeline_svg(pipeline: Pipeline) -> str:
    """Returns the chart as an `svg` element without styles. Raises as `timeline_of`."""
    step_s, rows = timeline_of(pipeline).step_s, rows_of(pipeline)
    x_of, floor = scale(step_s), TOP + row_height(rows) * len(rows)
    parts = [*grid(x_of, step_s, floor), *row_parts(x_of, rows, step_s)]
    return chart(parts, floor, pipeline_summary(pipeline))


def pipeline_picture(pipeline: Pipeline) -> Picture:
    """Returns the ranks' passes over time, and below what a device of each holds.

    Raises as `timeline_of`.
    """
    timeline, rows = timeline_of(pipeline), rows_of(pipeline)
    several = len(rows) < len(pipeline.stages)
    placed = f" on {counted(len(rows), 'rank')}" if several else ""
    title = (
        f"{pipeline.graph_name} on {counted(pipeline.gpus, 'GPU')} of {pipeline.hardware}: "
        f"a step of {counted(len(pipeline.stages), 'stage')}{placed}, {pipeline.schedule}"
    )
    height = min(4.5 + 0.45 * len(rows), MOST_INCHES)
    picture = Picture(title, (9, height), layout="constrained")
    lanes, memory = picture.figure.subplots(2, 1, height_ratios=(0.8 + 0.45 * len(rows), 2.6))
    lanes.set_title(title, fontsize=10)
    unit, factor = unit_of(timeline.step_s)
    draw_rows(picture, lanes, rows, timeline.step_s, edge=0.3)
    for rank, row in enumerate(rows):
        wide = timeline.step_s * factor / max(len(row.held_bytes), 1)
        memory.stairs(
            [size / GIB for size in row.held_bytes],
            [n * wide for n in range(len(row.held_bytes) + 1)],
            baseline=None,
            label=f"{'rank' if several else 'stage'} {rank}",
        )
    note = "; pale bars are many passes" if merged(timeline) else ""
    note += "; numbers are stages" if several else ""
    lanes.set_xlabel(f"{unit} of the step{note}")
    for handle in lanes.legend(
        frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0)
    ).legend_handles:
        handle.set_alpha(1.0)
    limit = pipeline.memory_limit_bytes
    if limit <= 1.5 * pipeline.predicted.peak_bytes:
        memory.axhline(limit / GIB, color="grey", linestyle="--", linewidth=1)
    memory.set_ylabel("GiB of one GPU, at most", fontsize=8)
    memory.set_xlabel(unit)
    memory.set_xlim(0, timeline.step_s * factor)
    memory.set_ylim(bottom=0)
    memory.grid(alpha=0.3, axis="x")
    if len(rows) <= 16:
        memory.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return picture
