"""Rows of quotes: time and price of a job on searched devices."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import UNSET

from shardwise.cost.options import Options
from shardwise.documents.curve import CurvePoint, fastest_s
from shardwise.documents.quote import NotOffered, OfferPart, OfferRow, step_s
from shardwise.errors import InternalError
from shardwise.hardware import Offer, stale


@dataclass(frozen=True)
class Terms:
    """Terms of a job's price other than the offer."""

    options: Options
    batch_size: int | None
    steps: int | None
    deadline_s: float | None
    today: datetime.date

    def ranking_s(self, point: CurvePoint) -> float:
        """Returns the time in seconds that ranks a point that fits."""
        ranked = fastest_s(point, self.options.overlap)
        if ranked is None:
            raise _nothing_fits(point)
        return ranked


def offer_row(offer: Offer, instances: int, point: CurvePoint, terms: Terms) -> OfferRow:
    """Returns the row of a number of instances of one kind."""
    part = offer_part(offer, instances)
    return row_of([part], point, terms, offer, stale=stale(offer, terms.today))


def offer_part(offer: Offer, instances: int) -> OfferPart:
    """Returns a number of instances with their price."""
    return OfferPart(
        instance_type=offer.instance_type,
        instances=instances,
        gpus=instances * offer.gpus_per_instance,
        gpu_kind=offer.gpu_kind,
        usd_per_hour=offer.usd_per_hour * instances,
        price_as_of=offer.price_as_of,
        price_source=offer.price_source,
    )


def row_of(
    parts: Sequence[OfferPart], point: CurvePoint, terms: Terms, of: Offer, *, stale: bool
) -> OfferRow:
    """Returns the row of combined instances: sums, and the words of all of them.

    Provider, region, market and profile are those of `of`.
    """
    time_s, replayed_s, peak_bytes, plan_id = _of_strategy(point)
    ranked_s = terms.ranking_s(point)
    per_hour = sum(part.usd_per_hour for part in parts)
    total_s = UNSET if terms.steps is None else ranked_s * terms.steps
    return OfferRow(
        provider=of.provider,
        instance_type=" + ".join(part.instance_type for part in parts),
        instances=sum(part.instances for part in parts),
        gpus=point.gpus,
        gpu_kind=" + ".join(part.gpu_kind for part in parts),
        region=of.region,
        spot=of.spot,
        usd_per_hour=per_hour,
        price_as_of=min(part.price_as_of for part in parts),
        price_source="; ".join(dict.fromkeys(part.price_source for part in parts)),
        stale=stale,
        hardware=of.hardware,
        time_s=time_s,
        replayed_time_s=replayed_s,
        peak_bytes=peak_bytes,
        plan_id=plan_id,
        compute_shares=point.compute_shares if point.pipeline is UNSET else None,
        confidence=point.confidence,
        usd_per_million_samples=UNSET
        if terms.batch_size is None
        else per_hour / 3600 * ranked_s / terms.batch_size * 1e6,
        total_s=total_s,
        usd_total=UNSET if total_s is UNSET else per_hour / 3600 * total_s,
        meets_deadline=UNSET
        if total_s is UNSET or terms.deadline_s is None
        else total_s <= terms.deadline_s,
        bundle=point.bundle,
        pipeline=point.pipeline,
        expected=point.expected if point.pipeline is UNSET else UNSET,
    )


def _of_strategy(point: CurvePoint) -> tuple[float, float, int, str]:
    """Returns both times, peak and id of a point's fastest strategy."""
    pipeline = point.pipeline
    if pipeline is not UNSET:
        return pipeline.step_s, pipeline.step_s, pipeline.peak_bytes, pipeline.id
    if (
        point.time_s is None
        or point.replayed_time_s is None
        or point.peak_bytes is None
        or point.plan_id is None
    ):
        raise _nothing_fits(point)
    return point.time_s, point.replayed_time_s, point.peak_bytes, point.plan_id


def _nothing_fits(point: CurvePoint) -> InternalError:
    return InternalError(f"{point.gpus} GPUs are offered on which nothing fits")


def price_of(row: OfferRow) -> float:
    """Returns the price of a row in USD: of the whole job, or without steps per hour."""
    return row.usd_per_hour if row.usd_total is UNSET else row.usd_total


def rank_of(row: OfferRow, overlap: bool) -> tuple[bool, float, float]:
    """Returns the sort key of rows: those within the deadline first, then by price."""
    price = row.usd_per_hour
    for better in (row.usd_per_million_samples, row.usd_total):
        price = price if better is UNSET else better
    return (row.meets_deadline is False, price, step_s(row, overlap))


def over_budget(row: OfferRow, budget_usd: float) -> NotOffered:
    """Returns why a row above the budget is left out."""
    return NotOffered(
        row.provider,
        row.instance_type,
        row.region,
        f"{row.instances} instances cost {price_of(row):.2f} USD, "
        f"over the budget of {budget_usd:.2f}",
    )
