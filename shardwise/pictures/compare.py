"""The picture of a comparison: our frontier, peers as curves and marks (TensorOpt Fig. 6)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shardwise.documents import Comparison
from shardwise.outfiles import written
from shardwise.pictures.plots import (
    BLUE,
    GIB,
    GREEN,
    ORANGE,
    check_suffix,
    draw_figure,
    save_figure,
)

GREY = "#7f7f7f"
WIDEST, TALLEST = 2.0, 2.5
"""How far a picture reaches: times our most memory, times our least time; the rest is named."""

MARKS: dict[str, tuple[str, str, str]] = {
    # (colour, mark of matplotlib, mark of Plotly)
    "data-parallel": ("#d62728", "s", "square"),
    "optcnn": ("#9467bd", "^", "triangle-up"),
    "flexflow": ("#8c564b", "D", "diamond"),
    "tofu": ("#e377c2", "v", "triangle-down"),
    "mesh-tensorflow": ("#bcbd22", "o", "circle"),
    "megatron": ("#17becf", "P", "cross"),
    "fsdp": ("#ff9896", "X", "x"),
    "shardwise-splits": (BLUE, ".", "circle"),
    "shardwise": ("#0b3d66", ".", "circle"),
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

    def dash(self, own: str, other: str, marks: str) -> str:
        """Returns the style of the line: of our frontiers, of another, of marks alone."""
        return marks if not self.frontier else own if self.ours else other


@dataclass(frozen=True)
class _Part:
    """What our frontier's time consists of: GiB and seconds."""

    title: str
    colour: str
    memory: list[float]
    time: list[float]


@dataclass(frozen=True)
class _Picture:
    """Everything that is drawn; from 0 to `width` GiB and `height` seconds."""

    lines: tuple[_Line, ...]
    parts: tuple[_Part, ...]
    limit: float
    title: str

    @property
    def width(self) -> float:
        own = max(m for line in self.lines if line.ours for m in line.memory)
        return min(WIDEST * own, 1.05 * max(m for line in self.lines for m in line.memory))

    @property
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
    suffix = check_suffix(path)
    picture = _Picture(
        tuple(_lines(document)),
        tuple(_parts(document)),
        document.memory_limit_bytes / GIB,
        f"{document.graph_name} on {document.gpus} GPUs of {document.hardware}: "
        "other systems on one cost model",
    )
    with written(path) as temporary:
        if suffix == ".html":
            _html(picture, temporary)
        else:
            _drawing(picture, temporary)


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


def _drawing(picture: _Picture, path: Path) -> None:
    figure, axes = draw_figure()
    for part in picture.parts:
        axes.plot(part.memory, part.time, ":", color=part.colour, label=part.title)
    for line in picture.lines:
        colour, mark, _ = MARKS[line.method]
        axes.plot(
            line.memory,
            line.time,
            mark,
            color=colour,
            drawstyle="steps-post",
            linestyle=line.dash("-", "--", "none"),
            linewidth=2.0 if line.ours else 1.2,
            markersize=2 if line.ours else 4 if line.frontier else 8,
            alpha=0.85,
            label=line.title,
            zorder=3 if line.frontier else 4,
        )
        above = True
        for memory, time, label in zip(line.memory, line.time, line.labels, strict=True):
            if label and not line.frontier and picture.holds(memory, time):
                axes.annotate(
                    label,
                    (memory, time),
                    textcoords="offset points",
                    xytext=(-8, 7) if above else (-8, -12),
                    fontsize=6,
                    color=GREY,
                )
                above = not above
    if picture.limit <= picture.width:
        axes.axvline(picture.limit, color=GREY, linestyle="--", linewidth=1, label="memory limit")
    axes.set_xlim(0, picture.width)
    axes.set_ylim(0, picture.height)
    axes.set_xlabel("\n".join(["memory per GPU (GiB)", *picture.beyond()]), fontsize=8)
    axes.set_ylabel("iteration time (s)")
    axes.set_title(picture.title, fontsize=9)
    axes.legend(frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    axes.grid(alpha=0.3)
    save_figure(figure, path)


def _html(picture: _Picture, path: Path) -> None:
    import plotly.graph_objects as go

    figure = go.Figure()
    for part in picture.parts:
        figure.add_scatter(
            x=part.memory,
            y=part.time,
            mode="lines",
            line={"dash": "dot", "color": part.colour},
            name=part.title,
        )
    for line in picture.lines:
        colour, _, mark = MARKS[line.method]
        figure.add_scatter(
            x=line.memory,
            y=line.time,
            mode="lines+markers" if line.frontier else "markers",
            line={"shape": "hv", "color": colour, "dash": line.dash("solid", "dash", "dot")},
            marker={"symbol": mark, "color": colour, "size": 4 if line.frontier else 11},
            text=line.labels,
            name=line.title,
        )
    if picture.limit <= picture.width:
        figure.add_vline(x=picture.limit, line_dash="dash", annotation_text="memory limit")
    figure.update_layout(
        title=picture.title,
        xaxis_title="<br>".join(["memory per GPU (GiB)", *picture.beyond()]),
        yaxis_title="iteration time (s)",
        xaxis_range=[0, picture.width],
        yaxis_range=[0, picture.height],
        template="plotly_white",
    )
    figure.write_html(path, include_plotlyjs=True, full_html=True)
