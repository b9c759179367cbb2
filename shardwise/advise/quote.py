"""Mini-parallelism with prices: the fewest GPUs a job fits on, offers ranked by price.

TensorOpt §4.1 (Mini-parallelism). One offer is a number of instances of one kind; its price for
the job is usd_per_hour · instances · time · steps / 3600.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import UNSET, UnsetType

from shardwise.advise.curve import curve_point, limit_bytes, ranking_time
from shardwise.advise.ranges import range_text, ranges_that_do_not_fit
from shardwise.cost.options import Options, Progress, go_on, quiet
from shardwise.documents.curve import CurvePoint, DoesNotFit
from shardwise.documents.quote import NotOffered, OfferRow, Quote, step_s
from shardwise.graph import Graph, graph_id
from shardwise.hardware import Offer, stale
from shardwise.search.search import Subject


def quote(
    graph: Graph,
    offers: Sequence[Offer],
    *,
    deadline_s: float | None = None,
    budget_usd: float | None = None,
    steps: int | None = None,
    max_instances: int = 16,
    options: Options | None = None,
    progress: Progress | None = None,
    today: datetime.date | None = None,
) -> Quote:
    """Returns the offers on which the job fits, cheapest first.

    For every offer the instance counts 1, 2, 4, … up to `max_instances` are tried, and the counts
    between the last that is too small and the first that fits. Offers are ranked by the price of
    the whole job when `steps` is given, else by the price of a million samples (of an hour, when
    the batch size is unknown). `budget_usd` leaves out what costs more; `deadline_s` is for all
    steps and marks each offer.
    """
    options, progress = options or Options(), progress or quiet
    subject = Subject.of(graph)
    today = today or datetime.datetime.now(tz=datetime.UTC).date()
    rows: list[OfferRow] = []
    left_out: list[NotOffered] = []
    known: dict[tuple[str, int], CurvePoint] = {}
    terms = _Terms(options, graph.batch_size, steps, deadline_s, today)
    for position, offer in enumerate(offers):
        go_on(progress, f"{offer.provider} {offer.instance_type}", position / len(offers))
        if offer.hardware is None:
            left_out.append(_not_offered(offer, f"no hardware profile for {offer.gpu_kind}"))
            continue
        fitting, tried = _instances(subject, offer, max_instances, options, known)
        rows += [_row(offer, instances, point, terms) for instances, point in fitting]
        if not fitting:
            ranges = ranges_that_do_not_fit(tried, limit_bytes(offer.profile(), options))
            reason = "; ".join(range_text(of) for of in ranges)
            left_out.append(_not_offered(offer, reason, ranges))
    if budget_usd is not None:
        left_out += [
            NotOffered(
                row.provider,
                row.instance_type,
                row.region,
                f"{row.instances} instances cost {_price(row):.2f} USD, "
                f"over the budget of {budget_usd:.2f}",
            )
            for row in rows
            if _price(row) > budget_usd
        ]
        rows = [row for row in rows if _price(row) <= budget_usd]
    rows.sort(key=lambda row: _rank(row, options.overlap))
    return Quote(
        graph=graph_id(graph),
        graph_name=graph.name,
        batch_size=graph.batch_size,
        steps=steps,
        deadline_s=deadline_s,
        budget_usd=budget_usd,
        offers=rows,
        not_offered=left_out,
        minimum_gpus=min((row.gpus for row in rows), default=None),
        stale=any(row.stale for row in rows),
        overlap=options.overlap,
    )


@dataclass(frozen=True)
class _Terms:
    """What the price of a job depends on besides the offer."""

    options: Options
    batch_size: int | None
    steps: int | None
    deadline_s: float | None
    today: datetime.date


def _instances(
    subject: Subject,
    offer: Offer,
    max_instances: int,
    options: Options,
    known: dict[tuple[str, int], CurvePoint],
) -> tuple[list[tuple[int, CurvePoint]], list[CurvePoint]]:
    """Returns the instance counts worth offering (the fewest that fits, then doublings).

    If there is none, the points that were tried.
    """
    hardware = offer.profile()

    def at(instances: int) -> CurvePoint:
        key = (hardware.id, instances)
        if key not in known:
            gpus = instances * offer.gpus_per_instance
            known[key], _ = curve_point(subject, hardware, gpus, options)
        return known[key]

    smallest = 1
    while smallest <= max_instances and not at(smallest).feasible:
        smallest *= 2
    if smallest > max_instances:
        return [], [at(2**power) for power in range(smallest.bit_length() - 1)]
    for fewer in range(smallest // 2 + 1, smallest):
        if at(fewer).feasible:
            smallest = fewer
            break
    counts = [smallest]
    while len(counts) < 3 and counts[-1] * 2 <= max_instances:
        counts.append(counts[-1] * 2)
    return [(n, at(n)) for n in counts if at(n).feasible], []


def _not_offered(
    offer: Offer, reason: str, ranges: list[DoesNotFit] | UnsetType = UNSET
) -> NotOffered:
    return NotOffered(offer.provider, offer.instance_type, offer.region, reason, ranges)


def _row(offer: Offer, instances: int, point: CurvePoint, terms: _Terms) -> OfferRow:
    ranked_s = ranking_time(point, terms.options)
    assert ranked_s is not None, "only counts that fit are offered"
    assert point.time_s is not None and point.replayed_time_s is not None
    assert point.peak_bytes is not None and point.plan_id is not None
    per_hour = offer.usd_per_hour * instances
    total_s = UNSET if terms.steps is None else ranked_s * terms.steps
    return OfferRow(
        provider=offer.provider,
        instance_type=offer.instance_type,
        instances=instances,
        gpus=point.gpus,
        gpu_kind=offer.gpu_kind,
        region=offer.region,
        spot=offer.spot,
        usd_per_hour=per_hour,
        price_as_of=offer.price_as_of,
        price_source=offer.price_source,
        stale=stale(offer, terms.today),
        hardware=offer.hardware,
        time_s=point.time_s,
        replayed_time_s=point.replayed_time_s,
        peak_bytes=point.peak_bytes,
        plan_id=point.plan_id,
        compute_shares=point.compute_shares,
        confidence=point.confidence,
        usd_per_million_samples=UNSET
        if terms.batch_size is None
        else per_hour / 3600 * ranked_s / terms.batch_size * 1e6,
        total_s=total_s,
        usd_total=UNSET if total_s is UNSET else per_hour / 3600 * total_s,
        meets_deadline=UNSET
        if total_s is UNSET or terms.deadline_s is None
        else total_s <= terms.deadline_s,
    )


def _price(row: OfferRow) -> float:
    return row.usd_per_hour if row.usd_total is UNSET else row.usd_total


def _rank(row: OfferRow, overlap: bool) -> tuple[bool, float, float]:
    price = row.usd_per_hour
    for better in (row.usd_per_million_samples, row.usd_total):
        price = price if better is UNSET else better
    return (row.meets_deadline is False, price, step_s(row, overlap))
