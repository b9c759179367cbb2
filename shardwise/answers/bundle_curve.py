"""Curves over bundles of several kinds: the shortest iteration time of a bundle."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import UNSET
from msgspec.structs import replace

from shardwise.answers.curve_points import (
    curve_of_point,
    feasible_point,
    infeasible_point,
    least_bytes,
)
from shardwise.answers.frontier import confidence_of, confidence_of_bundle, peaks_of
from shardwise.answers.pipeline_points import FastestPipelines
from shardwise.cost.options import Options, Progress, quiet
from shardwise.cost.pins import NoSuchAxis
from shardwise.cost.program import assumed
from shardwise.documents.curve import Curve, CurvePoint, DoesNotFit, fastest_s, fits
from shardwise.errors import SolverError
from shardwise.hardware import (
    Blocks,
    Devices,
    GroupPrice,
    Hardware,
    bundle_usd_per_hour,
)
from shardwise.search.chosen import fastest, too_large
from shardwise.search.group_alone import search_bundle
from shardwise.search.search import Infeasible, Search, Subject

_PER_BUNDLE = ("gpus", "nodes", "mesh", "device_memory_bytes", "memory_limit_bytes")
"""Heading members specific to one bundle."""


def bundle_part(
    subject: Subject,
    hardware: Hardware,
    text: str,
    options: Options,
    progress: Progress,
    asked: FastestPipelines | None,
    prices: Mapping[str, GroupPrice],
) -> Curve:
    """Returns the curve of one bundle, with the `asked` pipelines, priced by group."""
    bundle = Devices.parse(text, hardware, "bundles")
    point, search = bundle_point(subject, hardware, bundle, options, progress, asked)
    point = _priced(point, bundle, prices)
    ranges = []
    if not fits(point):
        ranges = [does_not_fit(point, limit_of(hardware, bundle, options))]
    return curve_of_point(point, search, _PER_BUNDLE, ranges)


def bundle_point(
    subject: Subject,
    hardware: Hardware,
    bundle: Devices,
    options: Options,
    progress: Progress = quiet,
    asked: FastestPipelines | None = None,
) -> tuple[CurvePoint, Search | None]:
    """Returns the shortest time on a bundle, or why there is none, and the search.

    As in a plan, it is one group's if that group alone is faster. If the time limit passed before
    any strategy was replayed, that is the reason. The point has a pipeline on all devices of the
    bundle if `asked` finds a faster one, or if nothing else fits.
    """
    options = assumed(options, hardware)
    point, search = _of_strategies(subject, hardware, bundle, options, progress)
    if asked is None:
        return point, search
    cutoff_s = fastest_s(point, options.overlap)
    pipeline = asked.fastest(hardware, bundle, progress, cutoff_s)
    if pipeline is not None:
        return replace(point, pipeline=pipeline), search
    if not point.feasible:
        reason = f"{point.reason}; no pipeline that was asked for fits either"
        return replace(point, reason=reason), search
    return point, search


def _of_strategies(
    subject: Subject, hardware: Hardware, bundle: Devices, options: Options, progress: Progress
) -> tuple[CurvePoint, Search | None]:
    """Returns the shortest time without pipelines."""
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
    point = replace(
        feasible_point(chosen, by, bundle.gpus, nodes),
        bundle=str(bundle),
        places=peaks_of(chosen),
        alone=UNSET if alone is None else alone.name,
    )
    return point, searches[0]


def _priced(point: CurvePoint, bundle: Devices, prices: Mapping[str, GroupPrice]) -> CurvePoint:
    usd_per_hour = bundle_usd_per_hour(bundle, prices)
    return point if usd_per_hour is None else replace(point, usd_per_hour=usd_per_hour)


def limit_of(hardware: Hardware, bundle: Devices, options: Options) -> float:
    """Returns the memory limit of the bundle's device with the least memory, in bytes."""
    devices = [hardware.kind(hardware.group(name).kind) for name, _ in bundle.counts]
    return options.limit_for(min(device.memory_bytes for device in devices))


def does_not_fit(point: CurvePoint, limit_bytes: float) -> DoesNotFit:
    """Returns the point of a bundle on which nothing fits; its memory is scaled to the smallest
    limit."""
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
