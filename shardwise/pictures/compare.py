"""The picture of a comparison: our frontier, peers as curves and marks (TensorOpt Fig. 6).

By replayed steps there is a panel above it: a bar for the best of each system, what it computes
and what it waits, the fastest on top.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import inf
from textwrap import shorten
from typing import Any

from msgspec import UNSET

from shardwise.documents import Comparison
from shardwise.documents.comparison import ComparedPoint, best_of, ranked, strategy_of
from shardwise.pictures.figure import BLUE, GREEN, ORANGE, Picture
from shardwise.pictures.plots import GIB

GREY = "#7f7f7f"
WIDEST, TALLEST = 2.0, 2.5
"""How far a picture reaches: times our most memory, times our least time; the rest is named."""

BEYOND_LIMIT = 1.25
"""How far a picture of replayed steps reaches: times the memory limit."""
FLOOR = 0.9
LONGEST_WORDS = 60

MARKS: dict[str, tuple[str, str]] = {
    # (colour, mark)
    "data-parallel": ("#d62728", "s"),
    "optcnn": ("#9467bd", "^"),
    "flexflow": ("#8c564b", "D"),
    "tofu": ("#e377c2", "v"),
    "mesh-tensorflow": ("#bcbd22", "o"),
    "megatron": ("#17becf", "P"),
    "zero": ("#c49c94", "p"),
    "fsdp": ("#ff9896", "X"),
    "hsdp": ("#f7b6d2", "h"),
    "ev-ps": ("#ffbb78", "<"),
    "ev-ar": ("#d62728", "s"),
    "cp-ps": ("#ff7f0e", ">"),
    "cp-ar": ("#e377c2", "p"),
    "horovod": ("#c49c94", "h"),
    "post": ("#bcbd22", "o"),
    "slowest": ("#9467bd", "v"),
    "megatron-3d": ("#9edae5", "P"),
    "gpipe": ("#98df8a", "s"),
    "shardwise-pipelines": ("#1f5a8a", "*"),
    "shardwise-splits": (BLUE, "."),
    "shardwise": ("#0b3d66", "."),
}
ALONE = ("#7f7f7f", "d")
"""The mark of one group of devices alone."""
PARTS = (("compute_s", "our compute", GREEN), ("communication_s", "our communication", ORANGE))


@dataclass(frozen=True)
class _Line:
    """One series: GiB and seconds; a frontier is a staircase, anything else marks.

    By replayed steps `best` is the point that stands for the system; a bar says what it is, so
    labels are drawn without it alone.
    """

    title: str
    memory: list[float]
    time: list[float]
    labels: list[str]
    method: str
    frontier: bool
    best: int | None

    @property
    def ours(self) -> bool:
        return self.method.startswith("shardwise")

    def texts(self) -> Iterator[tuple[float, float, str]]:
        """Returns each point with what it says."""
        for memory, time, label in zip(self.memory, self.time, self.labels, strict=True):
            yield (
                memory,
                time,
                f"{self.title} {label}".strip() + f": {memory:.2f} GiB, {time:.4g} s",
            )

    @property
    def size(self) -> int:
        """The size of marks."""
        if self.frontier:
            return 2 if self.ours else 4
        return 8 if self.best is None else 4

    @property
    def style(self) -> str:
        """The line's style: marks alone have none."""
        return "none" if not self.frontier else "-" if self.ours else "--"


@dataclass(frozen=True)
class _Part:
    """What our frontier's time consists of: GiB and seconds."""

    title: str
    colour: str
    memory: list[float]
    time: list[float]


@dataclass(frozen=True)
class _Comparison:
    """Everything that is drawn; from 0 to `width` GiB and from `floor` to `height` seconds."""

    lines: tuple[_Line, ...]
    parts: tuple[_Part, ...]
    limit: float

    @property
    def replayed(self) -> bool:
        """Whether it is of replayed steps."""
        return any(line.best is not None for line in self.lines)

    @cached_property
    def width(self) -> float:
        every = [m for line in self.lines for m in line.memory]
        if self.replayed:
            beyond = BEYOND_LIMIT * self.limit if min(every) <= self.limit else inf
            return min(beyond, 1.05 * max(every))
        own = [m for line in self.lines if line.ours for m in line.memory] or every
        return min(WIDEST * max(own), 1.05 * max(every))

    @cached_property
    def floor(self) -> float:
        """Where the times begin: at 0, by replayed steps a little below the shortest."""
        least = min(t for line in self.lines for t in line.time)
        return FLOOR * least if self.replayed else 0.0

    @cached_property
    def height(self) -> float:
        every = [t for line in self.lines for t in line.time]
        own = [t for line in self.lines if line.ours for t in line.time] or every
        return min(TALLEST * min(own), 1.05 * max(every))

    def holds(self, memory: float, time: float) -> bool:
        return memory <= self.width and time <= self.height

    def beyond(self) -> list[str]:
        """Returns the peers' points that lie outside, one line for each system."""
        texts = []
        for line in self.lines:
            if not line.ours:
                points = zip(line.memory, line.time, line.labels, strict=True)
                out = [p for p in points if not self.holds(p[0], p[1])]
                shown = ", ".join(f"{lb} {m:.1f} GiB {t:.3g} s".strip() for m, t, lb in out[:4])
                more = f" and {len(out) - 4} more" if len(out) > 4 else ""
                texts += [f"beyond the picture: {line.title}: {shown}{more}"] if out else []
        return texts

    def hidden(self) -> list[str]:
        """Returns which systems' best points lie outside, in a line."""
        out = [
            line.title
            for line in self.lines
            if line.best is not None
            and not self.holds(line.memory[line.best], line.time[line.best])
        ]
        return [f"beyond the picture: {', '.join(out)}"] if out else []


def compare_picture(document: Comparison) -> Picture:
    """Returns the picture of a comparison; points far off are named below it."""
    comparison = _Comparison(
        tuple(_lines(document)), tuple(_parts(document)), document.memory_limit_bytes / GIB
    )
    title = (
        f"{document.graph_name} on {document.gpus} GPUs of {document.hardware}: "
        "other systems on one cost model"
    )
    if not document.overlap:
        picture, axes = Picture.of_panels(title)
        _draw(picture, axes, comparison)
        axes.set_xlabel("\n".join(["memory per GPU (GiB)", *comparison.beyond()]), fontsize=8)
        axes.set_ylabel("iteration time (s)")
        axes.set_title(title, fontsize=9)
    else:
        picture, (bars, axes) = Picture.of_panels(title, 2)
        _draw_ranking(picture, bars, document)
        _draw(picture, axes, comparison)
        _draw_bound(axes, document)
        axes.set_xlabel("\n".join(["peak memory per GPU (GiB)", *comparison.hidden()]), fontsize=8)
        axes.set_ylabel("step (s)")
        bars.set_title(title, fontsize=9)
    return picture


def _lines(document: Comparison) -> Iterator[_Line]:
    for method in document.methods:
        points = method.points
        if points:
            memory = [p.memory_bytes / GIB for p in points]
            time = [p.time_s for p in points]
            best = None
            if document.overlap:
                memory = [(p.replayed_peak_bytes or 0) / GIB for p in points]
                time = [p.replayed_time_s or 0.0 for p in points]
                best = best_of(method)
            yield _Line(
                method.title,
                memory,
                time,
                [p.label or "" for p in points],
                method.method,
                method.frontier,
                best,
            )


def _parts(document: Comparison) -> Iterator[_Part]:
    """Compute and communication of our splits, as in the paper's figure."""
    if document.overlap:
        return
    own = next(m.points for m in document.methods if m.method == "shardwise-splits")
    memory = [p.memory_bytes / GIB for p in own]
    for key, name, colour in PARTS:
        yield _Part(name, colour, memory, [getattr(p, key) for p in own])


def _draw(picture: Picture, axes: Any, comparison: _Comparison) -> None:
    """Draws every system by memory and time."""
    for part in comparison.parts:
        axes.plot(part.memory, part.time, ":", color=part.colour, label=part.title)
    for line in comparison.lines:
        colour, mark = MARKS.get(line.method, ALONE)
        answer = line.ours and line.best is not None and not line.frontier
        axes.plot(
            line.memory,
            line.time,
            "*" if answer else mark,
            color=colour,
            drawstyle="steps-post",
            linestyle=line.style,
            linewidth=2.0 if line.ours else 1.2,
            markersize=15 if answer else line.size,
            alpha=0.85,
            label=line.title,
            zorder=5 if answer else 3 if line.frontier else 4,
        )
        if line.best is None:
            _annotate(axes, comparison, line)
        elif not (line.frontier or answer):
            place = ([line.memory[line.best]], [line.time[line.best]])
            axes.plot(*place, mark, color=colour, markersize=9, alpha=0.85, zorder=4)
    if comparison.limit <= comparison.width:
        axes.axvline(
            comparison.limit, color=GREY, linestyle="--", linewidth=1, label="memory limit"
        )
    axes.set_xlim(0, comparison.width)
    axes.set_ylim(comparison.floor, comparison.height)
    axes.legend(frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    axes.grid(alpha=0.3)
    for line in comparison.lines:
        picture.show_texts(axes, (p for p in line.texts() if comparison.holds(p[0], p[1])))


def _annotate(axes: Any, comparison: _Comparison, line: _Line) -> None:
    """Writes the labels of a system's strategies next to its marks."""
    above = True
    for memory, time, label in zip(line.memory, line.time, line.labels, strict=True):
        if label and not line.frontier and comparison.holds(memory, time):
            axes.annotate(
                label,
                (memory, time),
                textcoords="offset points",
                xytext=(-8, 7) if above else (-8, -12),
                fontsize=6,
                color=GREY,
            )
            above = not above


def _draw_bound(axes: Any, document: Comparison) -> None:
    """Draws where no strategy is, as far as is proven."""
    bound = document.certificate.time_lower_bound_s if document.certificate else UNSET
    if isinstance(bound, float):
        axes.fill_between(
            [0, document.memory_limit_bytes / GIB],
            bound,
            color=GREY,
            alpha=0.15,
            linewidth=0,
            label="proven: no strategy here",
        )
        axes.legend(frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _draw_ranking(picture: Picture, axes: Any, document: Comparison) -> None:
    """Draws a bar for the best of each system: what it computes, and what it waits."""
    best = ranked(document)
    steps = [point.replayed_time_s or 0.0 for _, point in best]
    end = min(max(steps), TALLEST * min(steps))
    for place, (method, point) in enumerate(best):
        exposed = point.exposed_communication_s or 0.0
        if point.pipeline:
            exposed = point.pipeline.idle * steps[place]
        compute = min(steps[place] - exposed, end)
        colour, alpha = MARKS.get(method.method, ALONE)[0], 0.9 if point.feasible else 0.3
        text = _said(point)
        for start, length, strength in (
            (0.0, compute, alpha),
            (compute, min(exposed, end - compute), alpha / 2),
        ):
            (bar,) = axes.barh(place, length, left=start, color=colour, alpha=strength)
            picture.show_text(bar, text)
        words = shorten(text, LONGEST_WORDS, placeholder=" …")
        place_s = min(steps[place], end) + 0.01 * end
        axes.text(place_s, place, words, va="center", fontsize=6).set_in_layout(False)
    axes.set_yticks(range(len(best)), [method.title for method, _ in best], fontsize=7)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.75 * end)
    axis = "step (s): computation, and paler what waits for communication or stages"
    cut = f"; bars end at {TALLEST:g} times the shortest" if max(steps) > end else ""
    axes.set_xlabel(axis + cut, fontsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _said(point: ComparedPoint) -> str:
    """Returns what a bar says: the step, how much slower it is, its peak, which strategy it is."""
    words = [f"{point.replayed_time_s:.4g} s"]
    if isinstance(point.slower_by, float) and point.slower_by:
        words.append(f"{point.slower_by:+.1%}")
    words.append(f"{(point.replayed_peak_bytes or 0) / GIB:.1f} GiB")
    if not point.feasible:
        words.append("does not fit")
    return ", ".join(filter(None, (*words, strategy_of(point))))
