"""The picture of a comparison: our frontier, peers as curves and marks (TensorOpt Fig. 6)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from shardwise.documents import Comparison
from shardwise.pictures.figure import BLUE, GREEN, ORANGE, Picture
from shardwise.pictures.plots import GIB

GREY = "#7f7f7f"
WIDEST, TALLEST = 2.0, 2.5
"""How far a picture reaches: times our most memory, times our least time; the rest is named."""

MARKS: dict[str, tuple[str, str]] = {
    # (colour, mark)
    "data-parallel": ("#d62728", "s"),
    "optcnn": ("#9467bd", "^"),
    "flexflow": ("#8c564b", "D"),
    "tofu": ("#e377c2", "v"),
    "mesh-tensorflow": ("#bcbd22", "o"),
    "megatron": ("#17becf", "P"),
    "fsdp": ("#ff9896", "X"),
    "shardwise-splits": (BLUE, "."),
    "shardwise": ("#0b3d66", "."),
}
PARTS = (("compute_s", "our compute", GREEN), ("communication_s", "our communication", ORANGE))


@dataclass(frozen=True)
class _Line:
    """One series: GiB and seconds; a frontier is a staircase, anything else marks."""

    title: str
    memory: list[float]
    time: list[float]
    labels: list[str]
    method: str
    frontier: bool

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
    """Everything that is drawn; from 0 to `width` GiB and `height` seconds."""

    lines: tuple[_Line, ...]
    parts: tuple[_Part, ...]
    limit: float

    @cached_property
    def width(self) -> float:
        own = max(m for line in self.lines if line.ours for m in line.memory)
        return min(WIDEST * own, 1.05 * max(m for line in self.lines for m in line.memory))

    @cached_property
    def height(self) -> float:
        own = min(t for line in self.lines if line.ours for t in line.time)
        return min(TALLEST * own, 1.05 * max(t for line in self.lines for t in line.time))

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


def plot_compare(document: Comparison, path: str) -> None:
    """Draws a `shardwise.compare/1` document; points far off are named below the picture."""
    comparison = _Comparison(
        tuple(_lines(document)), tuple(_parts(document)), document.memory_limit_bytes / GIB
    )
    title = (
        f"{document.graph_name} on {document.gpus} GPUs of {document.hardware}: "
        "other systems on one cost model"
    )
    _drawn(comparison, title).write(path)


def _lines(document: Comparison) -> Iterator[_Line]:
    for method in document.methods:
        points = method.points
        if points:
            yield _Line(
                method.title,
                [p.memory_bytes / GIB for p in points],
                [p.time_s for p in points],
                [p.label or "" for p in points],
                method.method,
                method.frontier,
            )


def _parts(document: Comparison) -> Iterator[_Part]:
    """Compute and communication of our splits, as in the paper's figure."""
    own = next(m.points for m in document.methods if m.method == "shardwise-splits")
    memory = [p.memory_bytes / GIB for p in own]
    for key, name, colour in PARTS:
        yield _Part(name, colour, memory, [getattr(p, key) for p in own])


def _drawn(comparison: _Comparison, title: str) -> Picture:
    picture, axes = Picture.of_panels(title)
    for part in comparison.parts:
        axes.plot(part.memory, part.time, ":", color=part.colour, label=part.title)
    for line in comparison.lines:
        colour, mark = MARKS[line.method]
        axes.plot(
            line.memory,
            line.time,
            mark,
            color=colour,
            drawstyle="steps-post",
            linestyle=line.style,
            linewidth=2.0 if line.ours else 1.2,
            markersize=2 if line.ours else 4 if line.frontier else 8,
            alpha=0.85,
            label=line.title,
            zorder=3 if line.frontier else 4,
        )
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
    if comparison.limit <= comparison.width:
        axes.axvline(
            comparison.limit, color=GREY, linestyle="--", linewidth=1, label="memory limit"
        )
    axes.set_xlim(0, comparison.width)
    axes.set_ylim(0, comparison.height)
    axes.set_xlabel("\n".join(["memory per GPU (GiB)", *comparison.beyond()]), fontsize=8)
    axes.set_ylabel("iteration time (s)")
    axes.set_title(title, fontsize=9)
    axes.legend(frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    axes.grid(alpha=0.3)
    for line in comparison.lines:
        picture.show_texts(axes, (p for p in line.texts() if comparison.holds(p[0], p[1])))
    return picture
