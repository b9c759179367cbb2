"""Gantt charts of a step: rows of bars over time, and the memory held.

A row is a lane of a plan of one stage (`gantt_svg` and `draw_gantt` here), or a rank of several
(`pipeline.py`). The `svg` elements are for pages: they need no library, their colours are classes
of the page's style sheet. What draws into axes makes panels of a picture that commands write.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any, NamedTuple

from shardwise.documents.timeline import Bar, Lane, Timeline
from shardwise.pictures.figure import BLUE, GREEN, ORANGE, RED, Picture
from shardwise.texts import gib, seconds

COLOURS = {
    "forward": BLUE,
    "recomputation": "#9467bd",
    "backward": GREEN,
    "inputs": GREEN,
    "weights": "#bcbd22",
    "update": "#7f7f7f",
    "compute": BLUE,
    "communication": ORANGE,
}

GIB = 2**30
WIDTH, LEFT, RIGHT = 960.0, 190.0, 12.0
LANE, BAR = 26.0, 18.0
TOP, MEMORY, BELOW = 22.0, 84.0, 24.0
MOST_TICKS = 7
FAINTEST = 0.35
"""How opaque a bar is of which nearly nothing is busy."""
HELD = 22.0
"""Height of the memory of a row that has its own."""
ROOM = 12.0
"""Width in which a bar's number can be read, on the page."""
ROOM_SHARE = 0.011
"""The same as a share of the step, in a picture that a command writes."""


class Mark(NamedTuple):
    """A bar in its row: what it says, from which to which share of the bars' height it is, how
    opaque in comparison, and the number that is written into it."""

    lane: Lane
    bar: Bar
    text: str
    top: float = 0.0
    height: float = 1.0
    opacity: float = 1.0
    number: str = ""


class Row(NamedTuple):
    """A row of a chart: its name on a page and in a picture, its bars, and below them what its
    devices hold over time."""

    name: str
    tick: str
    marks: Sequence[Mark]
    below: str = ""
    held_bytes: Sequence[int] = ()


def lanes_of(timeline: Timeline) -> list[Row]:
    """Returns a row for each lane of the step of one stage."""
    return [
        Row(name, name, [Mark(lane, bar, bar_text(lane, bar)) for bar in lane.bars])
        for lane in timeline.lanes
        for name in (_lane_name(timeline, lane),)
    ]


def gantt_summary(timeline: Timeline) -> str:
    """Returns the chart in a sentence, for those who do not see it."""
    lanes = ", ".join(f"{lane.name} {seconds(lane.busy_s)}" for lane in timeline.lanes)
    return (
        f"Gantt chart of a step of {seconds(timeline.step_s)}. Busy: {lanes}. Memory peaks at "
        f"{gib(timeline.peak_bytes)} GiB after {seconds(timeline.peak_at_s)}, at the start of "
        f"{timeline.peak_task}."
    )


def gantt_svg(
    timeline: Timeline,
    limit_bytes: float | None = None,
    across_s: float = 0.0,
    most_bytes: float = 0.0,
) -> str:
    """Returns the chart as an `svg` element without styles; its texts have the class `label`.

    It shows at least `across_s` and `most_bytes`, so that two charts can have the same axes.
    """
    x_of = scale(max(timeline.step_s, across_s))
    rows = lanes_of(timeline)
    bottom = TOP + LANE * len(rows)
    top = bottom + 14.0
    floor = top + MEMORY
    parts = [
        *grid(x_of, max(timeline.step_s, across_s), floor),
        *_memory(x_of, timeline, limit_bytes, most_bytes, top, floor),
        *row_parts(x_of, rows, timeline.step_s),
    ]
    x = x_of(timeline.peak_at_s)
    parts.append(
        f'<line class="peak" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 4}" y2="{floor:.1f}" '
        f'stroke="{RED}" stroke-dasharray="4 3"/>'
    )
    left = x > WIDTH / 2
    words = f"peak {gib(timeline.peak_bytes)} GiB"
    parts.append(label(x + (-5 if left else 5), TOP - 8, words, "end" if left else "start"))
    return chart(parts, floor, gantt_summary(timeline))


def chart(parts: Sequence[str], floor: float, summary: str) -> str:
    """Returns the `svg` element of a chart that ends at `floor`, with its summary in words."""
    return (
        f'<svg class="gantt" viewBox="0 0 {WIDTH:.0f} {floor + BELOW:.0f}" role="img" '
        f'aria-label="{escape(summary)}">{"".join(parts)}</svg>'
    )


def row_parts(x_of: Callable[[float], float], rows: Sequence[Row], step_s: float) -> list[str]:
    """Returns the rows from `TOP` on, each with what it holds where it has that."""
    parts: list[str] = []
    pitch = row_height(rows)
    most = max((size for row in rows for size in row.held_bytes), default=1) or 1
    for place, row in enumerate(rows):
        y = TOP + pitch * place
        parts.append(label(LEFT - 8, y + LANE / 2 + 4, row.name, "end"))
        for mark in row.marks:
            top = y + (LANE - BAR) / 2 + mark.top * BAR
            parts.append(_bar_mark(x_of, mark, top))
            left, right = x_of(mark.bar.start_s), x_of(mark.bar.end_s)
            if mark.number and right - left >= ROOM and mark.height == 1.0:
                parts.append(label((left + right) / 2, top + BAR / 2 + 4, mark.number, "middle"))
        if row.below:
            parts.append(label(LEFT - 8, y + pitch - 6, row.below, "end"))
            held, right = row.held_bytes, x_of(step_s)
            parts.append(_held(held, right, y + pitch - 2, HELD - 4, most))
    return parts


def row_height(rows: Sequence[Row]) -> float:
    """Returns how high each of the rows is."""
    return LANE + HELD if any(row.below for row in rows) else LANE


def scale(across_s: float) -> Callable[[float], float]:
    """Returns what places a moment in a chart that is this long."""
    per_s = (WIDTH - LEFT - RIGHT) / across_s if across_s else 0.0
    return lambda at_s: LEFT + per_s * at_s


def label(x: float, y: float, text: str, anchor: str = "start") -> str:
    """Returns a text of the chart."""
    return (
        f'<text class="label" x="{x:.1f}" y="{y:.1f}" font-size="12" fill="currentColor" '
        f'text-anchor="{anchor}">{escape(text)}</text>'
    )


def _bar_mark(x_of: Callable[[float], float], mark: Mark, y: float) -> str:
    """Returns a bar whose upper edge is at `y`, the paler the less of it is busy."""
    x, end = x_of(mark.bar.start_s), x_of(mark.bar.end_s)
    kind, height = mark.lane.kind, mark.height * BAR
    return (
        f'<rect class="{kind}" x="{x:.2f}" y="{y:.1f}" width="{max(end - x, 0.6):.2f}" '
        f'height="{height:g}" fill="{COLOURS[kind]}" fill-opacity="{_opacity(mark):.2f}">'
        f"<title>{escape(mark.text)}</title></rect>"
    )


def _opacity(mark: Mark) -> float:
    return mark.opacity * (FAINTEST + (1.0 - FAINTEST) * busy_share(mark.bar))


def _lane_name(timeline: Timeline, lane: Lane) -> str:
    share = lane.busy_s / timeline.step_s if timeline.step_s else 0.0
    return f"{lane.name}, {share:.0%}"


def bar_text(lane: Lane, bar: Bar, of: str = "") -> str:
    """Returns what a bar is, and `of` what: when it is, and how much of it is busy where that is
    not all."""
    text = f"{lane.name}{of}: {seconds(bar.start_s)} to {seconds(bar.end_s)}"
    return text if busy_share(bar) > 0.995 else f"{text}, {busy_share(bar):.0%} of it busy"


def busy_share(bar: Bar) -> float:
    """Returns the share of a bar in which something runs."""
    length = bar.end_s - bar.start_s
    return min(bar.busy_s / length, 1.0) if length else 1.0


def grid(x_of: Callable[[float], float], across_s: float, floor: float) -> list[str]:
    """Returns lines at round times, which are written below `floor`."""
    parts = []
    for at_s in _ticks(across_s):
        x = x_of(at_s)
        anchor = "end" if x > WIDTH - 3 * RIGHT else "middle"
        parts.append(
            f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{floor:.1f}" '
            'stroke="currentColor" stroke-opacity="0.15"/>'
        )
        parts.append(label(x, floor + 17, seconds(at_s) if at_s else "0", anchor))
    return parts


def _ticks(across_s: float) -> list[float]:
    """Returns round times from 0, at most `MOST_TICKS` of them."""
    if not across_s:
        return [0.0]
    power = 10.0 ** math.floor(math.log10(across_s / MOST_TICKS))
    step = next(n * power for n in (1, 2, 5, 10, 20) if across_s / (n * power) < MOST_TICKS)
    return [n * step for n in range(int(across_s / step) + 1)]


def _memory(
    x_of: Callable[[float], float],
    timeline: Timeline,
    limit_bytes: float | None,
    most_bytes: float,
    top: float,
    floor: float,
) -> list[str]:
    most = max(timeline.peak_bytes, most_bytes, 1.0)
    shown = limit_bytes if limit_bytes and limit_bytes <= 1.5 * most else None
    most = max(most, shown or 0.0)
    right = x_of(timeline.step_s)
    parts = [
        label(LEFT - 8, (top + floor) / 2 + 4, "Memory held", "end"),
        _held(timeline.held_bytes, right, floor, floor - top, most),
    ]
    if shown:
        y = floor - (floor - top) * shown / most
        parts.append(
            f'<line class="limit" x1="{LEFT}" x2="{right:.1f}" y1="{y:.1f}" '
            f'y2="{y:.1f}" stroke="{RED}"><title>limit {gib(shown)} GiB</title></line>'
        )
    return parts


def _held(sizes: Sequence[int], right: float, floor: float, tall: float, most: float) -> str:
    """Returns what is held over time, `tall` where it is `most` bytes."""
    wide = (right - LEFT) / max(len(sizes), 1)
    steps = " ".join(
        f"{LEFT + n * wide:.1f},{y:.1f} {LEFT + (n + 1) * wide:.1f},{y:.1f}"
        for n, y in enumerate(floor - tall * size / most for size in sizes)
    )
    return (
        f'<polygon class="memory" points="{LEFT},{floor:.1f} {steps} {right:.1f},{floor:.1f}" '
        f'fill="{BLUE}" fill-opacity="0.3"/>'
    )


def draw_gantt(picture: Picture, axes: Any, timeline: Timeline) -> None:
    """Draws the lanes in a panel, the first at the top, with the moment of the peak."""
    unit, factor = unit_of(timeline.step_s)
    draw_rows(picture, axes, lanes_of(timeline), timeline.step_s)
    axes.axvline(timeline.peak_at_s * factor, color=RED, linestyle="--", linewidth=1)
    axes.set_xlabel(f"{unit} of the replayed step (dashed: memory peaks)")


def draw_rows(
    picture: Picture, axes: Any, rows: Sequence[Row], step_s: float, edge: float = 0.0
) -> None:
    """Draws rows in a panel, the first at the top; bars have white edges `edge` points wide."""
    _, factor = unit_of(step_s)
    seen: set[str] = set()
    for place, row in enumerate(rows):
        for mark in row.marks:
            kind, wide = mark.lane.kind, mark.bar.end_s - mark.bar.start_s
            axes.broken_barh(
                [(mark.bar.start_s * factor, wide * factor)],
                (place - 0.35 + 0.7 * mark.top, 0.7 * mark.height), color=COLOURS[kind],
                alpha=_opacity(mark), edgecolor="white", linewidth=edge,
                label=None if kind in seen else mark.lane.name,
            )  # fmt: skip
            seen.add(kind)
            if mark.number and wide >= ROOM_SHARE * step_s and mark.height == 1.0:
                middle = (mark.bar.start_s + mark.bar.end_s) / 2 * factor
                axes.text(middle, place, mark.number, ha="center", va="center", fontsize=7)
        picture.show_texts(axes, _texts(row.marks, float(place), factor))
    axes.set_yticks(range(len(rows)), [row.tick for row in rows], fontsize=8)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0, step_s * factor)
    axes.grid(alpha=0.3, axis="x")


def _texts(marks: Iterable[Mark], y: float, factor: float) -> Iterable[tuple[float, float, str]]:
    """Yields what bars say, at their middles."""
    return (((m.bar.start_s + m.bar.end_s) / 2 * factor, y, m.text) for m in marks)


def draw_memory(axes: Any, timeline: Timeline, limit_bytes: float) -> None:
    """Draws what one GPU holds over the step, under the same axis of time."""
    unit, factor = unit_of(timeline.step_s)
    held = [value / GIB for value in timeline.held_bytes]
    width = timeline.step_s * factor / max(len(held), 1)
    edges = [n * width for n in range(len(held) + 1)]
    axes.stairs(held, edges, fill=True, color=BLUE, alpha=0.35)
    axes.plot(timeline.peak_at_s * factor, timeline.peak_bytes / GIB, "o", color=RED, markersize=4)
    late = timeline.peak_at_s > timeline.step_s / 2
    axes.annotate(
        f"{gib(timeline.peak_bytes)} GiB, {timeline.peak_task[:44]}",
        (timeline.peak_at_s * factor, timeline.peak_bytes / GIB),
        textcoords="offset points", xytext=(-6 if late else 6, -12), fontsize=8,
        horizontalalignment="right" if late else "left",
    )  # fmt: skip
    if limit_bytes <= 1.5 * timeline.peak_bytes:
        axes.axhline(limit_bytes / GIB, color="grey", linestyle="--", linewidth=1)
    axes.set_xlim(0, timeline.step_s * factor)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("GiB of one GPU", fontsize=8)
    axes.set_xlabel(unit)
    axes.grid(alpha=0.3)


def unit_of(step_s: float) -> tuple[str, float]:
    """Returns in which unit a chart has time, and how many of it a second is."""
    return ("seconds", 1.0) if step_s >= 1.0 else ("milliseconds", 1e3)
