"""The curve: the shortest iteration time for every GPU count (TensorOpt §4.1, Profiling)."""

from __future__ import annotations

from typing import Any

from shardwise.advise.chosen import fastest, time_gap, too_large
from shardwise.advise.communication_basis import MEASURED, MODELLED, communication_basis
from shardwise.advise.fitting import search_fitting
from shardwise.advise.frontier import heading
from shardwise.advise.options import Options, Progress, go_on, quiet
from shardwise.advise.pins import NoSuchAxis
from shardwise.advise.search import Infeasible, Search, Subject
from shardwise.errors import BadInput
from shardwise.graph import Graph
from shardwise.hardware import Hardware

CURVE_SCHEMA = "shardwise.curve/1"


def curve(
    graph: Graph,
    hardware: Hardware,
    max_gpus: int,
    options: Options | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """One point per GPU count from 1 to `max_gpus`, as the document `shardwise.curve/1`.

    `peak_bytes` and `replayed_time_s` are of the replayed step, `memory_bytes` and `time_s` what
    the search adds up; `samples_per_s` goes by the time that ranks. A count on which nothing fits
    has `feasible` false and its reason. `best_gpus` and `best_time_s` name the fastest count up to
    this one: an awkward count (a large prime) can be slower than a smaller one.
    """
    if max_gpus < 1:
        raise BadInput(f"{max_gpus} GPUs", field="max_gpus", expected="a whole number from 1")
    options, progress = options or Options(), progress or quiet
    subject = Subject.of(graph)
    points: list[dict[str, Any]] = []
    head: dict[str, Any] = {}
    seconds = 0.0
    best: tuple[int, float] | None = None
    for gpus in range(1, max_gpus + 1):
        watch = _one_of(progress, gpus, max_gpus)
        go_on(watch, "", 0.0)
        point, found = curve_point(subject, hardware, gpus, options, watch)
        if found is not None:
            seconds += float(found.solution.seconds)
            head = head or heading(found)
        ranked = ranking_time(point, options)
        if point["feasible"] and (best is None or ranked < best[1]):
            best = (gpus, ranked)
        point["best_gpus"], point["best_time_s"] = best or (None, None)
        points.append(point)
    per_count = ("gpus", "nodes", "mesh")
    return {
        "schema": CURVE_SCHEMA,
        **{key: value for key, value in head.items() if key not in per_count},
        "max_gpus": max_gpus,
        "points": points,
        "search": {"seconds": seconds},
    }


def ranking_time(point: dict[str, Any], options: Options) -> Any:
    """The time (seconds) by which the point of a curve is ranked; None where nothing fits."""
    return point["replayed_time_s" if options.overlap else "time_s"]


def _one_of(progress: Progress, gpus: int, max_gpus: int) -> Progress:
    """Progress of the search on one count as progress of the whole curve."""

    def tell(stage: str, fraction: float) -> bool:
        return progress(f"{gpus} of {max_gpus} GPUs", (gpus - 1 + fraction) / max_gpus)

    return tell


def curve_point(
    subject: Subject,
    hardware: Hardware,
    gpus: int,
    options: Options,
    progress: Progress = quiet,
) -> tuple[dict[str, Any], Search | None]:
    """The shortest time on `gpus` devices, or why there is none."""
    point: dict[str, Any] = {
        "gpus": gpus,
        "nodes": None,
        "feasible": False,
        "time_s": None,
        "replayed_time_s": None,
        "samples_per_s": None,
        "peak_bytes": None,
        "memory_bytes": None,
        "plan_id": None,
        "confidence": MEASURED if hardware.collectives else MODELLED,
    }
    try:
        searches = search_fitting(subject, hardware, gpus, options, progress)
    except (Infeasible, NoSuchAxis) as reason:
        point["reason"] = str(reason)
        return point, None
    point["nodes"] = searches[0].mesh.nodes
    point["confidence"] = communication_basis(hardware, searches[0].mesh)
    chosen = fastest(searches)
    if chosen is None:
        point["reason"] = too_large(searches)
        return point, searches[0]
    found = chosen.found
    batch = subject.graph.batch_size
    point.update(
        feasible=True,
        time_s=chosen.time_s,
        replayed_time_s=chosen.replayed_time_s,
        samples_per_s=None if batch is None else batch / chosen.ranking_s,
        peak_bytes=round(chosen.peak_bytes),
        memory_bytes=round(chosen.memory_bytes),
        micro_batches=found.micro_batches,
        plan_id=found.plan_id(chosen.point),
        gap=time_gap(searches, chosen.time_s),
    )
    return point, found
