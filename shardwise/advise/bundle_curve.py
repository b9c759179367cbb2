"""The curve of devices of several kinds: the shortest iteration time for every bundle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import UNSET
from msgspec.structs import asdict, replace

from shardwise.advise.curve_points import infeasible_point, least_bytes
from shardwise.advise.frontier import confidence_of, confidence_of_bundle, heading, peaks_of
from shardwise.cost.options import Options, Progress, go_on, quiet
from shardwise.cost.pins import NoSuchAxis
from shardwise.documents.curve import Curve, CurvePoint, CurveSearch, DoesNotFit
from shardwise.errors import SolverError
from shardwise.graph import Graph
from shardwise.hardware import (
    Blocks,
    Bundle,
    GroupPrice,
    Hardware,
    bundle_usd_per_hour,
    group_prices,
    parse_bundles,
    read_offers,
)
from shardwise.search.chosen import fastest, time_gap, too_large
from shardwise.search.group_alone import search_bundle
from shardwise.search.search import Infeasible, Search, Subject

_PER_BUNDLE = ("gpus", "nodes", "mesh", "device_memory_bytes", "memory_limit_bytes")
"""Members of a heading that hold for one bundle only."""


def bundle_curve(
    graph: Graph,
    hardware: Hardware,
    bundles: Sequence[str | Bundle],
    options: Options,
    progress: Progress,
) -> Curve:
    """Returns one point per bundle, those of few devices first (`parse_bundles`).

    The prices are those of the shipped offers. Raises `BadInput` as `parse_bundles` does.
    """
    chosen = parse_bundles(bundles, hardware)
    prices = group_prices(hardware, read_offers())
    subject = Subject.of(graph)
    points: list[CurvePoint] = []
    head: dict[str, Any] = {}
    seconds = 0.0
    for place, bundle in enumerate(chosen):
        watch = _one_of(progress, str(bundle), place, len(chosen))
        go_on(watch, "", 0.0)
        point, search = bundle_point(subject, hardware, bundle, options, watch)
        if search is not None:
            seconds += float(search.solution.seconds)
            head = head or asdict(heading(search))
        points.append(_priced(point, bundle, prices))
    return Curve(
        **{name: value for name, value in head.items() if name not in _PER_BUNDLE},
        max_gpus=max(bundle.gpus for bundle in chosen),
        points=points,
        search=CurveSearch(seconds),
        does_not_fit=[
            does_not_fit(point, limit_of(hardware, bundle, options))
            for point, bundle in zip(points, chosen, strict=True)
            if not point.feasible
        ],
        bundles=[str(bundle) for bundle in chosen],
    )


def bundle_point(
    subject: Subject,
    hardware: Hardware,
    bundle: Bundle,
    options: Options,
    progress: Progress = quiet,
) -> tuple[CurvePoint, Search | None]:
    """Returns the shortest time on a bundle, or why there is none, and the search.

    As in a plan, it is that of one of its groups where the devices of that group alone are faster.
    Where the time limit passed before any strategy was replayed, that is the reason.
    """
    nodes = Blocks.of(hardware, bundle).nodes
    try:
        searches, alone = search_bundle(subject, hardware, bundle, options, progress)
    except (Infeasible, NoSuchAxis, SolverError) as reason:
        point = infeasible_point(
            bundle.gpus, nodes, confidence_of_bundle(hardware, bundle), str(reason)
        )
        return replace(point, bundle=str(bundle)), None
    chosen, by = fastest(searches), searches
    if alone is not None:
        chosen, by = alone.best, alone.searches
    if chosen is None:
        basis = confidence_of(searches[0])
        point = infeasible_point(bundle.gpus, nodes, basis, too_large(searches))
        return replace(point, least_bytes=least_bytes(searches), bundle=str(bundle)), searches[0]
    batch, shares = subject.graph.batch_size, chosen.search.compute_shares(chosen.point)
    point = CurvePoint(
        gpus=bundle.gpus,
        nodes=nodes,
        feasible=True,
        time_s=chosen.time_s,
        replayed_time_s=chosen.replayed_time_s,
        samples_per_s=None if batch is None else batch / chosen.ranking_s,
        peak_bytes=round(chosen.peak_bytes),
        memory_bytes=round(chosen.memory_bytes),
        plan_id=chosen.search.plan_id(chosen.point),
        compute_shares=shares.document(),
        confidence=confidence_of(chosen.search, shares),
        micro_batches=chosen.search.micro_batches,
        gap=time_gap(by, chosen),
        bundle=str(bundle),
        places=peaks_of(chosen),
        alone=UNSET if alone is None else alone.name,
    )
    return point, searches[0]


def _priced(point: CurvePoint, bundle: Bundle, prices: Mapping[str, GroupPrice]) -> CurvePoint:
    usd_per_hour = bundle_usd_per_hour(bundle, prices)
    return point if usd_per_hour is None else replace(point, usd_per_hour=usd_per_hour)


def limit_of(hardware: Hardware, bundle: Bundle, options: Options) -> float:
    """Returns what a device of a bundle may use that has the least memory, in bytes."""
    devices = [hardware.kind(hardware.group(name).kind) for name, _ in bundle.counts]
    return options.limit_for(min(device.memory_bytes for device in devices))


def does_not_fit(point: CurvePoint, limit_bytes: float) -> DoesNotFit:
    """Returns a bundle on which nothing fits; its memory is on the scale of the smallest limit."""
    least = None if point.least_bytes is UNSET else point.least_bytes
    return DoesNotFit(
        first=point.gpus,
        last=point.gpus,
        nearest_gpus=None if least is None else point.gpus,
        least_bytes=least,
        limit_bytes=None if least is None else round(limit_bytes),
        reason=str(point.reason or ""),
        bundle=point.bundle,
    )


def _one_of(progress: Progress, text: str, place: int, of: int) -> Progress:
    """Returns progress of the search on one bundle as progress of the whole curve."""

    def report(stage: str, fraction: float) -> bool:
        return progress(f"{text} ({place + 1} of {of} bundles)", (place + fraction) / of)

    return report
