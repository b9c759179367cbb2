"""Pictures of answers: the frontier with its turning point, the curve."""

from __future__ import annotations

from msgspec import UNSET

from shardwise.documents import Curve, CurvePoint, Frontier
from shardwise.documents.curve import fastest_s, fastest_samples_per_s, fits
from shardwise.documents.frontier import axes_of, exposed_s
from shardwise.documents.pipeline_point import pipeline_text
from shardwise.pictures.figure import BLUE, GREEN, ORANGE, PURPLE, RED, Picture
from shardwise.pictures.scales import LOG, scale_for, set_scale

GIB = 2**30


def frontier_picture(document: Frontier, scale: str | None = None) -> Picture:
    """Returns time against memory, compute and communication dotted (TensorOpt Fig. 6).

    With `overlap` all are of the replayed step: its peak, its time, and of its communication what
    is exposed. Otherwise they are the sums. Pipelines are diamonds. `scale` is `linear` or `log`;
    by default their range decides.
    """
    picture, axes = Picture.of_panels(
        f"{document.graph_name} on {document.gpus} GPUs of {document.hardware}: time against memory"
    )
    points, knee = document.points, document.turning_point
    sizes, times = axes_of(document.overlap)
    memory = [getattr(p, sizes) / GIB for p in points]
    time = [getattr(p, times) for p in points]
    if document.overlap:
        titles, name = ("peak memory of one GPU (GiB)", "time of a step (s)"), "time of a step"
        waiting, communication = "exposed communication", [exposed_s(p) for p in points]
    else:
        titles, name = ("memory per GPU (GiB)", "iteration time (s)"), "iteration time"
        waiting, communication = "communication", [p.communication_s for p in points]
    axes.step(memory, time, where="post", color=BLUE, label=name)
    axes.plot(memory, time, ".", color=BLUE, markersize=3)
    axes.plot(memory, [p.compute_s for p in points], ":", color=GREEN, label="compute")
    axes.plot(memory, communication, ":", color=ORANGE, label=waiting)
    if knee is not None:
        axes.plot(memory[knee], time[knee], "o", color=RED, label="turning point")
        axes.annotate(
            f"{memory[knee]:.1f} GiB, {time[knee]:.3g} s",
            (memory[knee], time[knee]),
            textcoords="offset points",
            xytext=(8, 8),
        )
    pipelines = document.pipelines or []
    peaks, steps = [p.peak_bytes / GIB for p in pipelines], [p.step_s for p in pipelines]
    if pipelines:
        axes.plot(peaks, steps, "D", color=PURPLE, markersize=4, label="pipelines")
    limit = document.memory_limit_bytes / GIB
    # A limit far to the right of every point would squeeze them together.
    if memory and limit <= 1.5 * max(memory + peaks):
        axes.axvline(limit, color="grey", linestyle="--", linewidth=1, label="memory limit")
    axes.set_xlabel(titles[0])
    axes.set_ylabel(titles[1])
    set_scale(axes, scale_for(scale, memory + peaks, time + steps))
    axes.set_title(picture.title, fontsize=10)
    axes.legend(frameon=False)
    axes.grid(alpha=0.3)
    picture.show_texts(
        axes,
        (
            (
                memory[i],
                time[i],
                f"{memory[i]:.2f} GiB, {time[i]:.4g} s: compute {p.compute_s:.4g} s, "
                f"{waiting} {communication[i]:.4g} s" + (f"; {p.label}" if p.label else ""),
            )
            for i, p in enumerate(points)
        ),
    )
    picture.show_texts(
        axes,
        (
            (
                peak,
                step,
                f"{peak:.2f} GiB, {step:.4g} s: {pipeline_text(p)} micro-batches; {p.labels[0]}",
            )
            for peak, step, p in zip(peaks, steps, pipelines, strict=True)
        ),
    )
    return picture


def curve_picture(document: Curve, scale: str | None = None) -> Picture:
    """Returns shortest time and throughput against GPU count.

    The time is the replayed one with `overlap`, else the sum, or that of the pipeline where one is
    faster. Counts on which nothing fits are marked. Of several kinds of devices there is a bar for
    each bundle, with its name. `scale` is `linear` or `log`; by default the range of what is shown
    decides.
    """
    if document.bundles is not UNSET:
        return _bundles_picture(document)
    overlap = document.overlap is True
    fitting = [p for p in document.points if fits(p)]
    failing = [p.gpus for p in document.points if not fits(p)]
    piped = [p for p in fitting if p.pipeline is not UNSET]
    picture, axes = Picture.of_panels(
        f"{document.graph_name or ''} on {document.hardware or ''}: the curve", panels=2
    )
    gpus = [p.gpus for p in fitting]
    time = [fastest_s(p, overlap) or 0.0 for p in fitting]
    axes[0].plot(gpus, time, ".", color="lightgrey", label="exactly n")
    axes[0].step(
        gpus, [p.best_time_s for p in fitting], where="post", color=BLUE, label="at most n"
    )
    scale = scale_for(scale, time, gpus)
    low = 0.5 * min(time, default=1.0) if scale == LOG else 0.0
    axes[0].plot(failing, [low] * len(failing), "x", color=RED, label="does not fit")
    if piped:
        axes[0].plot(
            [p.gpus for p in piped],
            [fastest_s(p, overlap) for p in piped],
            "D",
            color=PURPLE,
            markersize=4,
            label="by a pipeline",
        )
    axes[0].set_ylabel("time of a step (s)" if document.overlap else "iteration time (s)")
    axes[0].legend(frameon=False)
    axes[0].set_title(picture.title, fontsize=10)
    rates = [(p.gpus, fastest_samples_per_s(p)) for p in fitting]
    known = [(n, rate) for n, rate in rates if rate is not None]
    axes[1].plot([n for n, _ in known], [rate for _, rate in known], ".", color=GREEN)
    axes[1].set_ylabel("samples per second")
    for panel in axes:
        set_scale(panel, scale, counts=True)
        panel.set_xlabel("GPUs")
        panel.grid(alpha=0.3)
    picture.show_texts(
        axes[0],
        ((gpus[i], time_s, f"{gpus[i]} GPUs: {time_s:.4g} s") for i, time_s in enumerate(time)),
    )
    picture.show_texts(
        axes[1], ((n, rate, f"{n} GPUs: {rate:.4g} samples per second") for n, rate in known)
    )
    return picture


def _bundles_picture(document: Curve) -> Picture:
    """Returns the shortest time of every bundle and its throughput, bundles named on the axis."""
    points = document.points
    picture, axes = Picture.of_panels(
        f"{document.graph_name or ''} on {document.hardware or ''}: the curve", panels=2
    )
    names = [_words(point) for point in points]
    places = range(len(points))
    fitting = [(i, point) for i, point in enumerate(points) if fits(point)]
    times = [(i, fastest_s(point, overlap=True) or 0.0) for i, point in fitting]
    of_all = [(i, fastest_samples_per_s(point)) for i, point in fitting]
    rates = [(i, rate) for i, rate in of_all if rate is not None]
    failing = [i for i, point in enumerate(points) if not fits(point)]
    piped = {i for i, point in fitting if point.pipeline is not UNSET}
    axes[0].bar([i for i, _ in times], [t for _, t in times], color=BLUE, label="time of a step")
    if piped:
        of_pipelines = [(i, t) for i, t in times if i in piped]
        axes[0].bar(*zip(*of_pipelines, strict=True), color=PURPLE, label="by a pipeline")
    axes[0].plot(failing, [0] * len(failing), "x", color=RED, label="does not fit")
    axes[0].set_ylabel("time of a step (s)")
    axes[0].set_title(picture.title, fontsize=10)
    axes[1].bar([i for i, _ in rates], [rate for _, rate in rates], color=GREEN)
    axes[1].set_ylabel("samples per second")
    if failing or piped:
        axes[0].legend(frameon=False)
    for panel in axes:
        panel.set_ylim(bottom=0)
        panel.set_xlim(-0.6, len(points) - 0.4)
        panel.set_xticks(list(places), names, rotation=30, ha="right", fontsize=8)
        panel.grid(alpha=0.3, axis="y")
    picture.show_texts(axes[0], ((i, t, f"{points[i].bundle}: {t:.4g} s") for i, t in times))
    picture.show_texts(
        axes[1], ((i, r, f"{points[i].bundle}: {r:.4g} samples per second") for i, r in rates)
    )
    return picture


def _words(point: CurvePoint) -> str:
    """Returns a bundle as an axis names it: `2 v100 + 4 1080ti`."""
    parts = [part.partition("=") for part in str(point.bundle).split(",")]
    return " + ".join(f"{count} {name}" for name, _, count in parts)
