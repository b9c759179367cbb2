"""The Gantt chart of a plan's replayed step: lanes over time, the memory held, where it peaks.

`gantt_svg` is for pages: it needs no library, its colours are classes of the page's style sheet.
`draw_gantt` and `draw_memory` are panels of a picture that commands write.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from html import escape
from typing import Any

from shardwise.documents.timeline import Bar, Lane, Timeline
from shardwise.pictures.figure import BLUE, GREEN, ORANGE, RED
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
    lanes = timeline.lanes
    bottom = TOP + LANE * len(lanes)
    top = bottom + 14.0
    floor = top + MEMORY
    parts = [
        *grid(x_of, max(timeline.step_s, across_s), floor),
        *_memory(x_of, timeline, limit_bytes, most_bytes, top, floor),
    ]
    for number, lane in enumerate(lanes):
        y = TOP + LANE * number
        parts.append(label(LEFT - 8, y + LANE / 2 + 4, _lane_name(timeline, lane), "end"))
        parts += [bar_mark(x_of, lane, bar, y + (LANE - BAR) / 2) for bar in lane.bars]
    x = x_of(timeline.peak_at_s)
    parts.append(
        f'<line class="peak" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 4}" y2="{floor:.1f}" '
        f'stroke="{RED}" stroke-dasharray="4 3"/>'
    )
    left = x > WIDTH / 2
    words = f"peak {gib(timeline.peak_bytes)} GiB"
    parts.append(label(x + (-5 if left else 5), TOP - 8, words, "end" if left else "start"))
    height = floor + BELOW
    return (
        f'<svg class="gantt" viewBox="0 0 {WIDTH:.0f} {height:.0f}" role="img" '
        f'aria-label="{escape(gantt_summary(timeline))}">{"".join(parts)}</svg>'
    )


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


def bar_mark(
    x_of: Callable[[float], float],
    lane: Lane,
    bar: Bar,
    y: float,
    height: float = BAR,
    opacity: float = 1.0,
    text: str | None = None,
) -> str:
    """Returns a bar whose upper edge is at `y`, the paler the less of it is busy; `text` is what it
    says in place of `bar_text`."""
    x, end = x_of(bar.start_s), x_of(bar.end_s)
    opaque = opacity * (FAINTEST + (1.0 - FAINTEST) * busy_share(bar))
    words = bar_text(lane, bar) if text is None else text
    return (
        f'<rect class="{lane.kind}" x="{x:.2f}" y="{y:.1f}" width="{max(end - x, 0.6):.2f}" '
        f'height="{height:g}" fill="{COLOURS[lane.kind]}" fill-opacity="{opaque:.2f}">'
        f"<title>{escape(words)}</title></rect>"
    )


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
    held = timeline.held_bytes
    most = max(timeline.peak_bytes, most_bytes, 1.0)
    shown = limit_bytes if limit_bytes and limit_bytes <= 1.5 * most else None
    most = max(most, shown or 0.0)
    right = x_of(timeline.step_s)
    wide = (right - LEFT) / max(len(held), 1)

    def y(value: float) -> float:
        return floor - (floor - top) * value / most

    steps = " ".join(
        f"{LEFT + n * wide:.1f},{y(value):.1f} {LEFT + (n + 1) * wide:.1f},{y(value):.1f}"
        for n, value in enumerate(held)
    )
    parts = [
        label(LEFT - 8, (top + floor) / 2 + 4, "Memory held", "end"),
        f'<polygon class="memory" points="{LEFT},{floor:.1f} {steps} {right:.1f},{floor:.1f}" '
        f'fill="{BLUE}" fill-opacity="0.3"/>',
    ]
    if shown:
        parts.append(
            f'<line class="limit" x1="{LEFT}" x2="{right:.1f}" y1="{y(shown):.1f}" '
            f'y2="{y(shown):.1f}" stroke="{RED}"><title>limit {gib(shown)} GiB</title></line>'
        )
    return parts


def draw_gantt(picture: Any, axes: Any, timeline: Timeline) -> None:
    """Draws the lanes in a panel, the first at the top, with the moment of the peak."""
    unit, factor = _unit(timeline)
    for number, lane in enumerate(timeline.lanes):
        for bar in lane.bars:
            opacity = FAINTEST + (1.0 - FAINTEST) * busy_share(bar)
            axes.broken_barh(
                [(bar.start_s * factor, (bar.end_s - bar.start_s) * factor)],
                (number - 0.35, 0.7), color=COLOURS[lane.kind], alpha=opacity, linewidth=0,
            )  # fmt: skip
        picture.show_texts(
            axes,
            (
                ((bar.start_s + bar.end_s) / 2 * factor, float(number), bar_text(lane, bar))
                for bar in lane.bars
            ),
        )
    axes.axvline(timeline.peak_at_s * factor, color=RED, linestyle="--", linewidth=1)
    names = [_lane_name(timeline, lane) for lane in timeline.lanes]
    axes.set_yticks(range(len(timeline.lanes)), names, fontsize=8)
    axes.set_ylim(len(timeline.lanes) - 0.5, -0.5)
    axes.set_xlim(0, timeline.step_s * factor)
    axes.set_xlabel(f"{unit} of the replayed step (dashed: memory peaks)")
    axes.grid(alpha=0.3, axis="x")


def draw_memory(axes: Any, timeline: Timeline, limit_bytes: float) -> None:
    """Draws what one GPU holds over the step, under the same axis of time."""
    unit, factor = _unit(timeline)
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


def _unit(timeline: Timeline) -> tuple[str, float]:
    return ("seconds", 1.0) if timeline.step_s >= 1.0 else ("milliseconds", 1e3)
