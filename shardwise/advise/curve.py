"""The curve: the shortest iteration time for every GPU count (TensorOpt §4.1, Profiling)."""

from __future__ import annotations

from math import isfinite
from typing import Any

from shardwise.advise.frontier import heading, provenance
from shardwise.advise.options import TOFU, Options, Progress, go_on, quiet
from shardwise.advise.pins import NoSuchAxis
from shardwise.advise.search import Infeasible, Search, Subject, search
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

    A count on which nothing fits has `feasible` false and its reason. `best_gpus` and
    `best_time_s` name the fastest count up to this one: an awkward count (a large prime) can be
    slower than a smaller one.
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
        if point["feasible"] and (best is None or point["time_s"] < best[1]):
            best = (gpus, point["time_s"])
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
        "samples_per_s": None,
        "peak_bytes": None,
        "plan_id": None,
        "confidence": provenance(hardware)["communication"],
    }
    try:
        found = search(subject, hardware, gpus, options, progress, near_limit=True)
    except (Infeasible, NoSuchAxis) as reason:
        point["reason"] = str(reason)
        return point, None
    point["nodes"] = found.mesh.nodes
    chosen = found.fastest_within(found.limit_bytes)
    if chosen is None:
        point["reason"] = too_large(found)
        return point, found
    time = float(found.time_s[chosen])
    batch = subject.graph.batch_size
    point.update(
        feasible=True,
        time_s=time,
        samples_per_s=None if batch is None else batch / time,
        peak_bytes=round(float(found.memory_bytes[chosen])),
        plan_id=found.plan_id(chosen),
        gap=time_gap(found, chosen),
    )
    return point, found


def time_gap(found: Search, chosen: int) -> float | None:
    """How much longer than the shortest possible time the chosen point is at most (relative).

    None when nothing is proven.
    """
    if found.solution.exact:
        return 0.0
    bound = found.solution.time_lower_bound_s
    if bound is None:
        epsilon = float(found.solution.epsilon)
        return epsilon if isfinite(epsilon) else None
    bound += found.problem.fixed_time_s
    return max(float(found.time_s[chosen]) / bound - 1.0, 0.0) if bound > 0 else None


def too_large(found: Search) -> str:
    """The reason of an infeasible count."""
    least = float(found.memory_bytes[0]) if len(found.memory_bytes) else float("nan")
    if found.options.method == TOFU:
        return (
            f"Tofu's strategy needs {least / 2**30:.1f} GiB per GPU, "
            f"the limit is {found.limit_bytes / 2**30:.1f} GiB"
        )
    qualifier = "" if found.solution.exact else "about "
    return (
        f"needs {qualifier}{least / 2**30:.1f} GiB per GPU at the least, "
        f"the limit is {found.limit_bytes / 2**30:.1f} GiB"
    )
