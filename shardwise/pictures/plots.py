"""Pictures: the frontier with its turning point, the curve. HTML by Plotly, else matplotlib."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwise.documents import Curve, CurvePoint, Frontier
from shardwise.errors import BadInput
from shardwise.outfiles import written

SUFFIXES = (".html", ".svg", ".png")
GIB = 2**30
BLUE, ORANGE, GREEN, RED = "#1f77b4", "#ff7f0e", "#2ca02c", "#d62728"


def check_suffix(path: str) -> str:
    """Returns the suffix of a plot path; `BadInput` unless it is one that can be drawn."""
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise BadInput(
            f"{path!r} is not a picture format", field="plot", expected=" or ".join(SUFFIXES)
        )
    return suffix


@dataclass(frozen=True)
class _Frontier:
    """What a picture of a frontier shows: GiB and seconds per point, and which point turns."""

    memory: list[float]
    series: dict[str, list[float]]
    knee: int | None
    limit: float
    title: str

    @property
    def time(self) -> list[float]:
        return self.series["iteration time"]

    @property
    def shows_limit(self) -> bool:
        """A limit far to the right of every point would squeeze them together."""
        return bool(self.memory) and self.limit <= 1.5 * max(self.memory)


def plot_frontier(document: Frontier, path: str) -> None:
    """Time against memory, compute and communication dotted (TensorOpt Fig. 6)."""
    suffix = check_suffix(path)
    points = document.points
    frontier = _Frontier(
        memory=[p.memory_bytes / GIB for p in points],
        series={
            "iteration time": [p.time_s for p in points],
            "compute": [p.compute_s for p in points],
            "communication": [p.communication_s for p in points],
        },
        knee=document.turning_point,
        limit=document.memory_limit_bytes / GIB,
        title=f"{document.graph_name} on {document.gpus} GPUs of {document.hardware}: "
        "time against memory",
    )
    with written(path) as temporary:
        if suffix == ".html":
            _frontier_html(frontier, temporary)
        else:
            _frontier_picture(frontier, temporary)


def _frontier_picture(frontier: _Frontier, path: Path) -> None:
    figure, axes = draw_figure()
    memory, time, knee = frontier.memory, frontier.time, frontier.knee
    axes.step(memory, time, where="post", color=BLUE, label="iteration time")
    axes.plot(memory, time, ".", color=BLUE, markersize=3)
    axes.plot(memory, frontier.series["compute"], ":", color=GREEN, label="compute")
    axes.plot(memory, frontier.series["communication"], ":", color=ORANGE, label="communication")
    if knee is not None:
        axes.plot(memory[knee], time[knee], "o", color=RED, label="turning point")
        axes.annotate(
            f"{memory[knee]:.1f} GiB, {time[knee]:.3g} s",
            (memory[knee], time[knee]),
            textcoords="offset points",
            xytext=(8, 8),
        )
    if frontier.shows_limit:
        axes.axvline(
            frontier.limit, color="grey", linestyle="--", linewidth=1, label="memory limit"
        )
    axes.set_xlabel("memory per GPU (GiB)")
    axes.set_ylabel("iteration time (s)")
    axes.set_ylim(bottom=0)
    axes.set_title(frontier.title, fontsize=10)
    axes.legend(frameon=False)
    axes.grid(alpha=0.3)
    save_figure(figure, path)


def _frontier_html(frontier: _Frontier, path: Path) -> None:
    import plotly.graph_objects as go

    figure = go.Figure()
    memory, time, knee = frontier.memory, frontier.time, frontier.knee
    figure.add_scatter(
        x=memory,
        y=time,
        mode="lines+markers",
        line={"shape": "hv", "color": BLUE},
        marker={"size": 4},
        name="iteration time",
    )
    for name, colour in (("compute", GREEN), ("communication", ORANGE)):
        figure.add_scatter(
            x=memory, y=frontier.series[name], line={"dash": "dot", "color": colour}, name=name
        )
    if knee is not None:
        figure.add_scatter(
            x=[memory[knee]],
            y=[time[knee]],
            mode="markers",
            marker={"size": 11, "color": RED},
            name="turning point",
        )
    if frontier.shows_limit:
        figure.add_vline(x=frontier.limit, line_dash="dash", annotation_text="memory limit")
    figure.update_layout(
        title=frontier.title,
        xaxis_title="memory per GPU (GiB)",
        yaxis_title="iteration time (s)",
        yaxis_rangemode="tozero",
        template="plotly_white",
    )
    figure.write_html(path, include_plotlyjs=True, full_html=True)


def plot_curve(document: Curve, path: str) -> None:
    """Shortest time and throughput against GPU count; counts on which nothing fits are marked."""
    suffix = check_suffix(path)
    fitting = [p for p in document.points if p.feasible]
    failing = [p.gpus for p in document.points if not p.feasible]
    title = f"{document.graph_name or ''} on {document.hardware or ''}: the curve"
    with written(path) as temporary:
        if suffix == ".html":
            _curve_html(fitting, failing, title, temporary)
        else:
            _curve_picture(fitting, failing, title, temporary)


def _curve_picture(fitting: list[CurvePoint], failing: list[int], title: str, path: Path) -> None:
    figure, axes = draw_figure(panels=2)
    gpus = [p.gpus for p in fitting]
    axes[0].plot(gpus, [p.time_s for p in fitting], ".", color="lightgrey", label="exactly n")
    axes[0].step(
        gpus, [p.best_time_s for p in fitting], where="post", color=BLUE, label="at most n"
    )
    axes[0].plot(failing, [0] * len(failing), "x", color=RED, label="does not fit")
    axes[0].set_ylabel("iteration time (s)")
    axes[0].set_ylim(bottom=0)
    axes[0].legend(frameon=False)
    axes[0].set_title(title, fontsize=10)
    known = [p for p in fitting if p.samples_per_s is not None]
    axes[1].plot([p.gpus for p in known], [p.samples_per_s for p in known], ".", color=GREEN)
    axes[1].set_ylabel("samples per second")
    axes[1].set_ylim(bottom=0)
    for panel in axes:
        panel.set_xlabel("GPUs")
        panel.grid(alpha=0.3)
    save_figure(figure, path)


def _curve_html(fitting: list[CurvePoint], failing: list[int], title: str, path: Path) -> None:
    from plotly.subplots import make_subplots

    figure = make_subplots(rows=2, cols=1, shared_xaxes=True)
    gpus = [p.gpus for p in fitting]
    figure.add_scatter(
        x=gpus, y=[p.time_s for p in fitting], mode="markers", name="exactly n", row=1, col=1
    )
    figure.add_scatter(
        x=gpus,
        y=[p.best_time_s for p in fitting],
        line={"shape": "hv", "color": BLUE},
        name="at most n",
        row=1,
        col=1,
    )
    figure.add_scatter(
        x=failing,
        y=[0] * len(failing),
        mode="markers",
        marker={"symbol": "x", "color": RED},
        name="does not fit",
        row=1,
        col=1,
    )
    figure.add_scatter(
        x=gpus,
        y=[p.samples_per_s for p in fitting],
        mode="markers",
        name="samples per second",
        row=2,
        col=1,
    )
    figure.update_layout(title=title, template="plotly_white")
    figure.update_yaxes(title_text="iteration time (s)", rangemode="tozero", row=1, col=1)
    figure.update_yaxes(title_text="samples per second", rangemode="tozero", row=2, col=1)
    figure.update_xaxes(title_text="GPUs", row=2, col=1)
    figure.write_html(path, include_plotlyjs=True, full_html=True)


def draw_figure(panels: int = 1) -> tuple[Any, Any]:
    """Returns an empty figure of matplotlib and its axes (several panels: an array of them)."""
    import matplotlib as mpl

    mpl.use("Agg")
    # A picture of the same document is the same file.
    mpl.rcParams["svg.hashsalt"] = "shardwise"
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(panels, 1, figsize=(8, 4.5 * panels), layout="constrained")
    return figure, axes


def save_figure(figure: Any, path: Path) -> None:
    """Writes a figure of matplotlib and lets it go."""
    from matplotlib import pyplot as plt

    metadata = {"Date": None} if path.suffix == ".svg" else {}
    figure.savefig(path, dpi=120, metadata=metadata)
    plt.close(figure)
