"""The Gantt chart of a pipeline's step: a row for each rank, with its passes and what it holds.

Where a rank has several stages, bars say which of them they are of, and later ones are paler. Bars
that stand for many passes overlap there: each stage has a strip of the row for its own.

`pipeline_svg` is for pages, as `gantt_svg` is of plans; `pipeline_picture` is what commands write.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

from msgspec import UNSET

from shardwise.documents.pipeline import Pipeline
from shardwise.documents.timeline import Bar, Lane, PipelineTimeline, StageTimeline
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
"""Height of the memory of a rank."""
PALEST = 0.55
"""How opaque the bars of a rank's last stage are, of those of its first."""
MOST_NAMED = 4
"""Stages of a rank that are named at its row; of more the first two and the last."""
ROOM = 12.0
"""Width in which a bar's stage can be read, on the page."""
ROOM_SHARE = 0.011
"""The same as a share of the step, in a picture that a command writes."""
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


@dataclass(frozen=True)
class _Row:
    """A rank of the chart: its number and its stages."""

    rank: int
    stages: tuple[int, ...]

    @property
    def several(self) -> bool:
        """Whether the rank has more than one stage."""
        return len(self.stages) > 1

    def name(self, pipeline: Pipeline) -> tuple[str, str]:
        """Returns what the row is, and what the rank's devices wait and hold at most."""
        of = pipeline.stages[self.stages[0]]
        waits, peak = f"waits {of.idle:.0%}", f"peak {gib(of.peak_bytes)} GiB"
        if not self.several:
            return f"Stage {self.stages[0]}, {waits}", peak
        named = [str(stage) for stage in self.stages]
        if len(named) > MOST_NAMED:
            named = [*named[:2], "…", named[-1]]
        return f"Rank {self.rank}: stages {', '.join(named)}", f"{waits}, {peak}"


class _Mark(NamedTuple):
    """A bar in its row: from which to which share of the bars' height, how opaque in comparison,
    and of which stage."""

    lane: Lane
    bar: Bar
    top: float
    height: float
    opacity: float
    stage: int


def _rows(pipeline: Pipeline) -> list[_Row]:
    """Returns the ranks, those of the first devices first."""
    firsts = sorted({stage.first_device for stage in pipeline.stages})
    return [
        _Row(
            rank,
            tuple(n for n, stage in enumerate(pipeline.stages) if stage.first_device == first),
        )
        for rank, first in enumerate(firsts)
    ]


def _marks(row: _Row, timeline: PipelineTimeline) -> Iterator[_Mark]:
    """Yields the bars of a rank. A device runs one pass at a time, so only those that are many
    passes overlap."""
    each = len(row.stages)
    for place, stage in enumerate(row.stages):
        opacity = 1.0 - (1.0 - PALEST) * place / max(each - 1, 1)
        for lane in timeline.stages[stage].lanes:
            top, height = (place / each, 1.0 / each) if lane.kind == "compute" else (0.0, 1.0)
            for bar in lane.bars:
                yield _Mark(lane, bar, top, height, opacity, stage)


def _text(mark: _Mark, row: _Row) -> str:
    """Returns what a bar is, of several stages also of which."""
    of = f" (stage {mark.stage})" if row.several else ""
    return bar_text(mark.lane, mark.bar, of)


def pipeline_summary(pipeline: Pipeline) -> str:
    """Returns the chart in a sentence, for those who do not see it."""
    rows, stages = _rows(pipeline), counted(len(pipeline.stages), "stage")
    waits = ", ".join(f"{row.rank} {pipeline.stages[row.stages[0]].idle:.1%}" for row in rows)
    ranks = f" on {counted(len(rows), 'rank')}" if len(rows) < len(pipeline.stages) else ""
    return (
        f"Gantt chart of a step of {seconds(pipeline.predicted.step_s)} in {stages}{ranks}. "
        f"Share of the step in which each {'rank' if ranks else 'stage'} waits: {waits}."
    )


def pipeline_svg(pipeline: Pipeline) -> str:
    """Returns the chart as an `svg` element without styles. Raises as `timeline_of`."""
    timeline = timeline_of(pipeline)
    x_of = scale(timeline.step_s)
    row, rows = LANE + HELD, _rows(pipeline)
    floor = TOP + row * len(rows)
    most = max((size for stage in timeline.stages for size in stage.held_bytes), default=1) or 1
    parts = [*grid(x_of, timeline.step_s, floor)]
    for number, of in enumerate(rows):
        y = TOP + row * number
        name, below = of.name(pipeline)
        parts.append(label(LEFT - 8, y + LANE / 2 + 4, name, "end"))
        for mark in _marks(of, timeline):
            top = y + (LANE - BAR) / 2 + mark.top * BAR
            parts.append(
                bar_mark(
                    x_of, mark.lane, mark.bar, top, mark.height * BAR, mark.opacity, _text(mark, of)
                )
            )
            wide = x_of(mark.bar.end_s) - x_of(mark.bar.start_s)
            if of.several and wide >= ROOM and mark.height == 1.0:
                middle = (x_of(mark.bar.start_s) + x_of(mark.bar.end_s)) / 2
                parts.append(label(middle, top + BAR / 2 + 4, str(mark.stage), "middle"))
        parts.append(label(LEFT - 8, y + row - 6, below, "end"))
        held = timeline.stages[of.stages[0]]
        parts.append(_held(held, x_of(timeline.step_s), y + row - 2, most))
    return (
        f'<svg class="gantt" viewBox="0 0 {WIDTH:.0f} {floor + BELOW:.0f}" role="img" '
        f'aria-label="{escape(pipeline_summary(pipeline))}">{"".join(parts)}</svg>'
    )


def _held(stage: StageTimeline, right: float, floor: float, most: float) -> str:
    """Returns what a rank holds over time, as high as its share of `most` bytes."""
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
    """Returns the ranks' passes over time, and below what a device of each holds.

    Raises as `timeline_of`.
    """
    timeline, rows = timeline_of(pipeline), _rows(pipeline)
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
    unit, factor = ("seconds", 1.0) if timeline.step_s >= 1.0 else ("milliseconds", 1e3)
    seen: set[str] = set()
    for number, row in enumerate(rows):
        marks = [*_marks(row, timeline)]
        for lane, bar, top, share, opacity, stage in marks:
            lanes.broken_barh(
                [(bar.start_s * factor, (bar.end_s - bar.start_s) * factor)],
                (number - 0.36 + 0.72 * top, 0.72 * share), color=COLOURS[lane.kind],
                alpha=opacity * (FAINTEST + (1.0 - FAINTEST) * busy_share(bar)),
                edgecolor="white", linewidth=0.3, label=None if lane.kind in seen else lane.name,
            )  # fmt: skip
            seen.add(lane.kind)
            long = bar.end_s - bar.start_s >= ROOM_SHARE * timeline.step_s
            if row.several and long and share == 1.0:
                middle = (bar.start_s + bar.end_s) / 2 * factor
                lanes.text(middle, number, str(stage), ha="center", va="center", fontsize=7)
        picture.show_texts(
            lanes,
            (
                ((m.bar.start_s + m.bar.end_s) / 2 * factor, float(number), _text(m, row))
                for m in marks
            ),
        )
        held = timeline.stages[row.stages[0]].held_bytes
        wide = timeline.step_s * factor / max(len(held), 1)
        memory.stairs(
            [size / GIB for size in held],
            [n * wide for n in range(len(held) + 1)],
            baseline=None,
            label=f"{'rank' if several else 'stage'} {row.rank}",
        )
    names = [_tick(row, pipeline) for row in rows]
    lanes.set_yticks(range(len(rows)), names, fontsize=8)
    lanes.set_ylim(len(rows) - 0.5, -0.5)
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
    memory.set_ylim(bottom=0)
    if len(rows) <= 16:
        memory.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    for axes in (lanes, memory):
        axes.set_xlim(0, timeline.step_s * factor)
        axes.grid(alpha=0.3, axis="x")
    return picture


def _tick(row: _Row, pipeline: Pipeline) -> str:
    """Returns the name of a row, of several stages in two lines."""
    name, below = row.name(pipeline)
    return f"{name}\n{below.partition(',')[0]}" if row.several else name.replace("S", "s", 1)
