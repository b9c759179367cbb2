"""Combinations of several kinds of instances as one cluster.

Instances can form a cluster if they share provider, region and market (on demand or spot) and have
different kinds of devices. There are too many to search all, so a combination is searched only if
an optimistic estimate beats every single offer:

- no part alone is enough: each does not fit, or is too slow for the deadline;
- if all parts fit, they would meet the deadline at the sum of their rates, and the job would then
  cost less than on the best single offer that meets it, if there is one;
- if some part does not fit alone, the rate is unknown: together they cost less per hour than the
  cheapest single offer that is enough, if there is one.

Per sample, a combination is never cheaper than its better part (a mean lies between), so without a
deadline only parts that do not fit alone are combined. The cheapest `MOST_TRIED` of the remaining
combinations are searched, until one is better.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product

from msgspec import UNSET
from msgspec.structs import replace

from shardwise.answers.bundle_curve import bundle_point
from shardwise.answers.curve import curve_point
from shardwise.answers.curve_points import point_progress
from shardwise.answers.pipeline_points import PipelinePoints
from shardwise.answers.quote_rows import Terms, offer_part, rank_of, row_of
from shardwise.cost.options import Options, Progress, go_on, quiet
from shardwise.documents.curve import CurvePoint, fits
from shardwise.documents.quote import Combination, Combinations, OfferRow
from shardwise.errors import NotFound
from shardwise.hardware import (
    Devices,
    Hardware,
    Nodes,
    Offer,
    combined_profile,
    group_name,
    stale,
)
from shardwise.hardware.combined import ASSUMPTION
from shardwise.search.search import Subject

MOST_TRIED = 6
"""Maximum combinations searched."""
MOST_INSTANCES = 4
"""Maximum instances of one kind in a combination."""
RULE = (
    "instances of one provider, region and market, of different kinds of devices, 1, 2 or 4 of "
    "each, of which none alone is enough (fits, and meets the deadline), and which could be "
    "cheaper than every single offer that is if rates added up; the cheapest per hour are tried "
    "first, until one is better"
)


Points = dict[tuple[str, int], CurvePoint]
"""Points of single offers by the profile's id and the number of instances."""


@dataclass
class Known:
    """The points of single offers that were searched."""

    points: Points
    asked: PipelinePoints | None = None
    """The requested pipelines, on one kind of instances and on several."""

    def point(
        self,
        subject: Subject,
        offer: Offer,
        instances: int,
        options: Options,
        progress: Progress = quiet,
    ) -> CurvePoint:
        """Returns the point of this many instances of an offer. Raises `Cancelled` if `progress`
        returns False in a search or after it, since one that ended early may have missed a strategy
        that fits."""
        hardware = offer.profile()
        key = (hardware.id, instances)
        if key not in self.points:
            gpus = instances * offer.gpus_per_instance
            self.points[key], _ = curve_point(
                subject, hardware, gpus, options, progress, self.asked
            )
            go_on(progress, "", 1.0)
        return self.points[key]


@dataclass(frozen=True)
class _Together:
    """Instances of several offers, with their numbers."""

    counts: tuple[tuple[Offer, int], ...]

    @property
    def usd_per_hour(self) -> float:
        return sum(offer.usd_per_hour * count for offer, count in self.counts)

    @property
    def gpus(self) -> int:
        return sum(offer.gpus_per_instance * count for offer, count in self.counts)

    def __str__(self) -> str:
        where = self.counts[0][0]
        parts = " + ".join(f"{count} {offer.instance_type}" for offer, count in self.counts)
        return f"{where.provider} {parts}" + (" (spot)" if where.spot else "")

    def hardware(self) -> Hardware:
        """Returns the profile of all instances. Raises `BadInput` if they cannot form a cluster."""
        return combined_profile(
            [Nodes(group_name(offer.gpu_kind), offer.profile(), n) for offer, n in self.counts]
        )

    def bundle(self) -> Devices:
        return Devices(
            tuple(
                (group_name(offer.gpu_kind), count * offer.gpus_per_instance)
                for offer, count in self.counts
            )
        )


def profile_of_row(offers: Sequence[Offer], row: OfferRow) -> Hardware:
    """Returns the profile on which a combined row was searched, from the offers of its quote.

    Raises `NotFound` if they have not all of its parts.
    """
    counts: list[tuple[Offer, int]] = []
    for part in row.parts or ():
        for offer in offers:
            same = (offer.provider, offer.region, offer.spot) == (
                row.provider,
                row.region,
                row.spot,
            )
            if same and offer.instance_type == part.instance_type:
                counts.append((offer, part.instances))
                break
        else:
            raise NotFound(f"there is no offer of {row.provider} {part.instance_type}")
    return _Together(tuple(counts)).hardware()


def combined_rows(
    subject: Subject,
    offers: Sequence[Offer],
    rows: Sequence[OfferRow],
    known: Known,
    terms: Terms,
    most_kinds: int,
    max_instances: int,
    progress: Progress,
) -> tuple[list[OfferRow], Combinations]:
    """Returns the combination better than every single offer, if one was found, and the tried ones.
    `rows` are those of the single offers."""
    best = min((rank_of(row, terms.options.overlap) for row in rows), default=None)
    enough = [row.usd_per_hour for row in rows if row.meets_deadline is not False]
    most_usd = min(enough, default=float("inf"))
    candidates = [
        together
        for together in _candidates(offers, most_kinds, max_instances)
        if _may_be_better(subject, together, known, terms, best, most_usd)
    ]
    candidates.sort(key=lambda together: (together.usd_per_hour, together.gpus))
    tried: list[Combination] = []
    for place, together in enumerate(candidates[:MOST_TRIED]):
        one = point_progress(progress, str(together), place, MOST_TRIED)
        row, outcome = _searched(subject, together, terms, one, known.asked)
        go_on(one, "", 1.0)
        if row is not None and best is not None and rank_of(row, terms.options.overlap) >= best:
            row, outcome = None, f"{outcome}, not better than one kind"
        tried.append(
            Combination(str(together), str(together.bundle()), together.usd_per_hour, outcome)
        )
        if row is not None:
            return [row], _report(most_kinds, candidates, tried)
    return [], _report(most_kinds, candidates, tried)


def _report(
    most_kinds: int, candidates: Sequence[_Together], tried: list[Combination]
) -> Combinations:
    return Combinations(most_kinds, MOST_TRIED, RULE, len(candidates), tried)


def _candidates(
    offers: Sequence[Offer], most_kinds: int, max_instances: int
) -> Iterator[_Together]:
    """Yields instances that can be one cluster."""
    places: dict[tuple[str, str, bool], list[Offer]] = {}
    for offer in offers:
        if offer.hardware is not None:
            places.setdefault((offer.provider, offer.region, offer.spot), []).append(offer)
    counts = [n for n in (1, 2, 4) if n <= min(max_instances, MOST_INSTANCES)]
    for kinds in range(2, most_kinds + 1):
        for here in places.values():
            for some in combinations(here, kinds):
                if len({offer.profile().devices[0].kind for offer in some}) < kinds:
                    continue
                for numbers in product(counts, repeat=kinds):
                    if sum(numbers) <= max_instances:
                        yield _Together(tuple(zip(some, numbers, strict=True)))


def _may_be_better(
    subject: Subject,
    together: _Together,
    known: Known,
    terms: Terms,
    best: tuple[bool, float, float] | None,
    most_usd: float,
) -> bool:
    """Returns whether no part is enough alone and all together may beat `best`, the rank of the
    best single offer. `most_usd` is the hourly price of the cheapest offer that is enough."""
    wanted_s = None
    if terms.deadline_s is not None and terms.steps is not None:
        wanted_s = terms.deadline_s / terms.steps
    rate, unknown = 0.0, False
    for offer, count in together.counts:
        point = known.point(subject, offer, count, terms.options)
        if not fits(point):
            unknown = True
            continue
        step_s = terms.ranking_s(point)
        if wanted_s is None or step_s <= wanted_s:
            return False
        rate += 1.0 / step_s
    if unknown:
        return together.usd_per_hour < most_usd
    if wanted_s is None or terms.steps is None or rate * wanted_s < 1.0:
        return False
    usd_total = together.usd_per_hour / 3600 * terms.steps / rate
    return best is None or best[0] or usd_total < best[1]


def _searched(
    subject: Subject,
    together: _Together,
    terms: Terms,
    progress: Progress,
    asked: PipelinePoints | None,
) -> tuple[OfferRow | None, str]:
    """Returns the row of a combination, or None if it is not enough, and the outcome in words."""
    hardware, bundle = together.hardware(), together.bundle()
    point, _ = bundle_point(subject, hardware, bundle, terms.options, progress, asked)
    if not fits(point):
        return None, f"does not fit: {point.reason}"
    parts = [offer_part(offer, count) for offer, count in together.counts]
    old = any(stale(offer, terms.today) for offer, _ in together.counts)
    row = row_of(parts, point, terms, together.counts[0][0], stale=old)
    row = replace(row, parts=parts, combined=ASSUMPTION, hardware=hardware.name)
    step = f"{terms.ranking_s(point):.4g} s a step"
    if point.alone is not UNSET and point.pipeline is UNSET:
        return None, f"{step}, by {point.alone} alone"
    if row.meets_deadline is False:
        return None, f"{step}, too slow"
    return row, step
