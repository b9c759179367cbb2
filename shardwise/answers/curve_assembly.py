"""Assembles a curve from the curves of single counts of GPUs or bundles.

Parts may come from several computations, in any order; a part is of its own count, or of fewer,
faster devices with the others idle. Members that compare counts are found here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from msgspec import UNSET
from msgspec.structs import replace

from shardwise.answers.ranges import ranges_that_do_not_fit
from shardwise.documents.curve import (
    Curve,
    CurvePoint,
    CurveSearch,
    DoesNotFit,
    MissingPoint,
    fastest_s,
    fits,
)
from shardwise.documents.questions import Gpus

NOT_COMPUTED = "not computed yet"
"""The default reason for a missing count."""


def computing_order(places: Iterable[Gpus]) -> list[Gpus]:
    """Returns counts in the order of computation; bundles unchanged.

    Powers of two come first, then the counts between, multiples of large powers of two first, so
    that the counts of an unfinished curve are far apart.
    """
    found = list(places)
    counts = [place for place in found if isinstance(place, int)]
    if not counts:
        return found
    return [*sorted(counts, key=_turn)]


def _turn(count: int) -> tuple[bool, int, int]:
    between = count & (count - 1) != 0
    return between, -(count & -count) if between else 0, count


def assembled(
    places: Sequence[Gpus],
    parts: Mapping[Gpus, Curve],
    missing: Mapping[Gpus, str] | None = None,
    *,
    named: bool = False,
) -> Curve:
    """Returns the curve of these counts or bundles, of which `parts` are known.

    `missing` has the reasons for the others. `named`: the query lists its counts.
    """
    reasons = missing or {}
    known = [parts[place] for place in places if place in parts]
    head = next((part for part in known if part.graph is not UNSET), Curve())
    points = [part.points[0] for part in known]
    over_bundles = any(isinstance(place, str) for place in places)
    curve = replace(
        head,
        max_gpus=max((gpus_of(place) for place in places), default=0),
        points=points,
        search=CurveSearch(sum(part.search.seconds for part in known)),
        does_not_fit=[run for some in _runs(places, parts) for run in _that_do_not_fit(some)],
        bundles=[str(place) for place in places] if over_bundles else UNSET,
        counts=[place for place in places if isinstance(place, int)] if named else UNSET,
        missing=[
            _missing(place, reasons.get(place, NOT_COMPUTED))
            for place in places
            if place not in parts
        ]
        or UNSET,
    )
    return curve if over_bundles else _compared(curve)


def parts_of(curve: Curve) -> Iterator[tuple[Gpus, Curve]]:
    """Yields the known counts or bundles of a curve, each with its part.

    The first part has the seconds of the whole search.
    """
    seconds = curve.search.seconds
    for point in curve.points:
        alone = [run for run in curve.does_not_fit if _is_of(run, point)]
        limits = [run.limit_bytes for run in alone if run.limit_bytes is not None]
        ranges = alone
        if point.bundle is UNSET:
            ranges = ranges_that_do_not_fit([point], next(iter(limits), 0))
        part = replace(
            curve,
            max_gpus=point.gpus,
            points=[_of_its_own(point)],
            search=CurveSearch(seconds),
            does_not_fit=ranges,
            bundles=UNSET if point.bundle is UNSET else [point.bundle],
            counts=UNSET,
            missing=UNSET,
            speedup_from=UNSET,
        )
        yield place_of(point), part
        seconds = 0.0


def place_of(point: CurvePoint) -> Gpus:
    """Returns the count or the bundle of a point."""
    return point.gpus if point.bundle is UNSET else point.bundle


def gpus_of(place: Gpus) -> int:
    """Returns the number of devices of a count, or of a bundle's text such as `v100=2,p100=1`."""
    if isinstance(place, int):
        return place
    return sum(int(group.rpartition("=")[2]) for group in place.split(","))


def is_incomplete(curve: Curve) -> bool:
    """Returns whether counts or bundles are missing."""
    return bool(curve.missing)


def _runs(places: Sequence[Gpus], parts: Mapping[Gpus, Curve]) -> Iterator[list[Curve]]:
    """Yields the parts without a missing one between them."""
    for known, some in groupby(places, key=lambda place: place in parts):
        if known:
            yield [parts[place] for place in some]


def _that_do_not_fit(parts: Sequence[Curve]) -> list[DoesNotFit]:
    each = [run for part in parts for run in part.does_not_fit]
    if any(run.bundle is not UNSET for run in each):
        return each
    limits = [run.limit_bytes for run in each if run.limit_bytes is not None]
    return ranges_that_do_not_fit((part.points[0] for part in parts), next(iter(limits), 0))


def _is_of(run: DoesNotFit, point: CurvePoint) -> bool:
    return run.bundle == point.bundle and run.first <= point.gpus <= run.last


def _missing(place: Gpus, reason: str) -> MissingPoint:
    bundle = place if isinstance(place, str) else UNSET
    return MissingPoint(gpus_of(place), reason, bundle)


def _of_its_own(point: CurvePoint) -> CurvePoint:
    """Returns a point without the members that compare it with others."""
    return replace(point, best_gpus=None, best_time_s=None, speedup=UNSET, efficiency=UNSET)


def with_idle(point: CurvePoint, gpus: int) -> CurvePoint:
    """Returns a point for more GPUs, with the additional ones idle."""
    used = point.gpus - (point.idle or 0)
    return replace(_of_its_own(point), gpus=gpus, idle=gpus - used)


def _compared(curve: Curve) -> Curve:
    """Returns a curve over counts with the fastest count so far and the scaling from the smallest
    that fits. If fewer devices are faster, the others are idle."""
    points: list[CurvePoint] = []
    first: tuple[int, float] | None = None
    best: tuple[CurvePoint, float] | None = None
    for point in curve.points:
        step_s = fastest_s(point, bool(curve.overlap)) if fits(point) else None
        # Devices that the hardware does not have are not left idle.
        if best is not None and point.nodes is not None and not (step_s and step_s < best[1]):
            point, step_s = with_idle(best[0], point.gpus), best[1]
        if step_s:
            first = first or (point.gpus, step_s)
            best = (point, step_s) if best is None or step_s < best[1] else best
            speedup = first[1] / step_s
            point = replace(point, speedup=speedup, efficiency=speedup * first[0] / point.gpus)
        best_gpus = None if best is None else best[0].gpus - (best[0].idle or 0)
        best_time_s = None if best is None else best[1]
        points.append(replace(point, best_gpus=best_gpus, best_time_s=best_time_s))
    return replace(curve, points=points, speedup_from=UNSET if first is None else first[0])
