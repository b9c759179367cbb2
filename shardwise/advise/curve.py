"""The curve: the shortest iteration time for every GPU count (TensorOpt §4.1, Profiling)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET, UnsetType
from msgspec.structs import asdict, replace

from shardwise.advise.frontier import confidence, heading
from shardwise.advise.ranges import ranges_that_do_not_fit
from shardwise.cost.options import Options, Progress, go_on, quiet
from shardwise.cost.pins import NoSuchAxis
from shardwise.documents.curve import Curve, CurvePoint, CurveSearch
from shardwise.errors import BadInput
from shardwise.graph import Graph
from shardwise.hardware import Hardware
from shardwise.search.chosen import fastest, lowest_peak, time_gap, too_large
from shardwise.search.fitting import search_fitting
from shardwise.search.search import Infeasible, Search, Subject

_PER_COUNT = ("gpus", "nodes", "mesh")
"""Members of a heading that hold for one number of GPUs only."""


def curve(
    graph: Graph,
    hardware: Hardware,
    max_gpus: int,
    options: Options | None = None,
    progress: Progress | None = None,
) -> Curve:
    """Returns one point per GPU count from 1 to `max_gpus`.

    `peak_bytes` and `replayed_time_s` are of the replayed step, `memory_bytes` and `time_s` what
    the search adds up; `samples_per_s` goes by the time that ranks. A count on which nothing fits
    has `feasible` false and its reason. `best_gpus` and `best_time_s` name the fastest count up to
    this one: an awkward count (a large prime) can be slower than a smaller one.
    `compute_shares` says which fractions of the compute time (the sum's) were measured,
    interpolated, modelled; `confidence` says so in words, for communication too.
    """
    if max_gpus < 1:
        raise BadInput(f"{max_gpus} GPUs", field="max_gpus", expected="a whole number from 1")
    options, progress = options or Options(), progress or quiet
    subject = Subject.of(graph)
    points: list[CurvePoint] = []
    head: dict[str, Any] = {}
    seconds = 0.0
    best: tuple[int, float] | None = None
    for gpus in range(1, max_gpus + 1):
        watch = _one_of(progress, gpus, max_gpus)
        go_on(watch, "", 0.0)
        point, search = curve_point(subject, hardware, gpus, options, watch)
        if search is not None:
            seconds += float(search.solution.seconds)
            head = head or asdict(heading(search))
        ranked = ranking_time(point, options)
        if ranked is not None and (best is None or ranked < best[1]):
            best = (gpus, ranked)
        best_gpus, best_time_s = best or (None, None)
        points.append(replace(point, best_gpus=best_gpus, best_time_s=best_time_s))
    of_all = {name: value for name, value in head.items() if name not in _PER_COUNT}
    return Curve(
        **of_all,
        max_gpus=max_gpus,
        points=points,
        search=CurveSearch(seconds),
        does_not_fit=ranges_that_do_not_fit(points, limit_bytes(hardware, options)),
    )


def limit_bytes(hardware: Hardware, options: Options) -> float:
    """Returns what one device may use."""
    return options.limit_for(hardware.devices[0].memory_bytes)


def ranking_time(point: CurvePoint, options: Options) -> float | None:
    """Returns the time in seconds that ranks the point of a curve; None where nothing fits."""
    return point.replayed_time_s if options.overlap else point.time_s


def _one_of(progress: Progress, gpus: int, max_gpus: int) -> Progress:
    """Returns progress of the search on one count as progress of the whole curve."""

    def report(stage: str, fraction: float) -> bool:
        return progress(f"{gpus} of {max_gpus} GPUs", (gpus - 1 + fraction) / max_gpus)

    return report


def curve_point(
    subject: Subject,
    hardware: Hardware,
    gpus: int,
    options: Options,
    progress: Progress = quiet,
) -> tuple[CurvePoint, Search | None]:
    """Returns the shortest time on `gpus` devices, or why there is none, and the search."""
    try:
        searches = search_fitting(subject, hardware, gpus, options, progress)
    except (Infeasible, NoSuchAxis) as reason:
        return _infeasible(gpus, None, confidence(hardware, None), str(reason)), None
    mesh = searches[0].mesh
    chosen = fastest(searches)
    if chosen is None:
        point = _infeasible(gpus, mesh.nodes, confidence(hardware, mesh), too_large(searches))
        return replace(point, least_bytes=_least_bytes(searches)), searches[0]
    search = chosen.search
    batch = subject.graph.batch_size
    shares = search.compute_shares(chosen.point)
    point = CurvePoint(
        gpus=gpus,
        nodes=mesh.nodes,
        feasible=True,
        time_s=chosen.time_s,
        replayed_time_s=chosen.replayed_time_s,
        samples_per_s=None if batch is None else batch / chosen.ranking_s,
        peak_bytes=round(chosen.peak_bytes),
        memory_bytes=round(chosen.memory_bytes),
        plan_id=search.plan_id(chosen.point),
        compute_shares=shares.document(),
        confidence=confidence(hardware, search.mesh, shares),
        micro_batches=search.micro_batches,
        gap=time_gap(searches, chosen),
    )
    return point, search


def _least_bytes(searches: Sequence[Search]) -> int | UnsetType:
    if not any(len(search.time_s) for search in searches):
        return UNSET
    return round(lowest_peak(searches).peak_bytes)


def _infeasible(gpus: int, nodes: int | None, basis: str, reason: str) -> CurvePoint:
    return CurvePoint(
        gpus=gpus,
        nodes=nodes,
        feasible=False,
        time_s=None,
        replayed_time_s=None,
        samples_per_s=None,
        peak_bytes=None,
        memory_bytes=None,
        plan_id=None,
        compute_shares=None,
        confidence=basis,
        reason=reason,
    )
