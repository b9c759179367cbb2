"""Pictures of answers: the frontier with its turning point, the curve."""

from __future__ import annotations

from shardwise.documents import Curve, Frontier
from shardwise.pictures.figure import BLUE, GREEN, ORANGE, RED, Picture

GIB = 2**30


def frontier_picture(document: Frontier) -> Picture:
    """Returns time against memory, compute and communication dotted (TensorOpt Fig. 6)."""
    picture, axes = Picture.of_panels(
        f"{document.graph_name} on {document.gpus} GPUs of {document.hardware}: time against memory"
    )
    points, knee = document.points, document.turning_point
    memory, time = [p.memory_bytes / GIB for p in points], [p.time_s for p in points]
    axes.step(memory, time, where="post", color=BLUE, label="iteration time")
    axes.plot(memory, time, ".", color=BLUE, markersize=3)
    axes.plot(memory, [p.compute_s for p in points], ":", color=GREEN, label="compute")
    axes.plot(memory, [p.communication_s for p in points], ":", color=ORANGE, label="communication")
    if knee is not None:
        axes.plot(memory[knee], time[knee], "o", color=RED, label="turning point")
        axes.annotate(
            f"{memory[knee]:.1f} GiB, {time[knee]:.3g} s",
            (memory[knee], time[knee]),
            textcoords="offset points",
            xytext=(8, 8),
        )
    limit = document.memory_limit_bytes / GIB
    # A limit far to the right of every point would squeeze them together.
    if memory and limit <= 1.5 * max(memory):
        axes.axvline(limit, color="grey", linestyle="--", linewidth=1, label="memory limit")
    axes.set_xlabel("memory per GPU (GiB)")
    axes.set_ylabel("iteration time (s)")
    axes.set_ylim(bottom=0)
    axes.set_title(picture.title, fontsize=10)
    axes.legend(frameon=False)
    axes.grid(alpha=0.3)
    picture.show_texts(
        axes,
        (
            (
                p.memory_bytes / GIB,
                p.time_s,
                f"{p.memory_bytes / GIB:.2f} GiB, {p.time_s:.4g} s: compute {p.compute_s:.4g} s, "
                f"communication {p.communication_s:.4g} s" + (f"; {p.label}" if p.label else ""),
            )
            for p in points
        ),
    )
    return picture


def curve_picture(document: Curve) -> Picture:
    """Returns shortest time and throughput against GPU count.

    Counts on which nothing fits are marked.
    """
    fitting = [p for p in document.points if p.feasible]
    failing = [p.gpus for p in document.points if not p.feasible]
    picture, axes = Picture.of_panels(
        f"{document.graph_name or ''} on {document.hardware or ''}: the curve", panels=2
    )
    gpus = [p.gpus for p in fitting]
    axes[0].plot(gpus, [p.time_s for p in fitting], ".", color="lightgrey", label="exactly n")
    axes[0].step(
        gpus, [p.best_time_s for p in fitting], where="post", color=BLUE, label="at most n"
    )
    axes[0].plot(failing, [0] * len(failing), "x", color=RED, label="does not fit")
    axes[0].set_ylabel("iteration time (s)")
    axes[0].set_ylim(bottom=0)
    axes[0].legend(frameon=False)
    axes[0].set_title(picture.title, fontsize=10)
    known = [(p.gpus, p.samples_per_s) for p in fitting if p.samples_per_s is not None]
    axes[1].plot([n for n, _ in known], [rate for _, rate in known], ".", color=GREEN)
    axes[1].set_ylabel("samples per second")
    axes[1].set_ylim(bottom=0)
    for panel in axes:
        panel.set_xlabel("GPUs")
        panel.grid(alpha=0.3)
    picture.show_texts(
        axes[0],
        ((p.gpus, p.time_s, f"{p.gpus} GPUs: {p.time_s:.4g} s") for p in fitting if p.time_s),
    )
    picture.show_texts(
        axes[1], ((n, rate, f"{n} GPUs: {rate:.4g} samples per second") for n, rate in known)
    )
    return picture
