"""A quote over the parts of one profile with groups of devices, at prices by group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import UNSET
from msgspec.structs import replace

from shardwise.answers.bundle_curve import bundle_point, does_not_fit, limit_of
from shardwise.answers.certificates import not_searched
from shardwise.answers.curve_points import point_progress
from shardwise.answers.pipeline_points import PipelinePoints
from shardwise.answers.quote_rows import Terms, over_budget, price_of, rank_of, row_of
from shardwise.answers.ranges import range_reason
from shardwise.cost.options import Progress, go_on
from shardwise.cost.program import assumed, program_text
from shardwise.documents.curve import fits
from shardwise.documents.quote import NotOffered, OfferPart, OfferRow, Quote
from shardwise.errors import BadInput
from shardwise.hardware import Devices, GroupPrice, Hardware, Offer, group_prices, parts_of, stale
from shardwise.hardware.offers import UNDATED
from shardwise.search.search import Subject

GIVEN = "given with the question"
"""The source of a price given in the query."""
HOW = "the devices of one profile, as its own links and paths join them"


def profile_quote(
    subject: Subject,
    hardware: Hardware,
    offers: Sequence[Offer],
    prices: Mapping[str, float],
    terms: Terms,
    budget_usd: float | None,
    progress: Progress,
    asked: PipelinePoints | None = None,
) -> Quote:
    """Returns the parts of a profile (`parts_of`) on which the job fits, cheapest first, by the
    `asked` pipelines if faster.

    Raises `BadInput`, which names `prices.GROUP`, for a group without a price.
    """
    known = require_prices(hardware, offers, prices)
    rows: list[OfferRow] = []
    left_out: list[NotOffered] = []
    bundles = parts_of(hardware)
    for place, bundle in enumerate(bundles):
        one = point_progress(progress, str(bundle), place, len(bundles))
        point, _ = bundle_point(subject, hardware, bundle, terms.options, one, asked)
        go_on(one, "", 1.0)
        if not fits(point):
            ranges = [does_not_fit(point, limit_of(hardware, bundle, terms.options))]
            reason = range_reason(ranges[0])
            left_out.append(NotOffered(hardware.name, str(bundle), "", reason, ranges))
            continue
        parts = [_part(hardware, name, count, known[name], terms) for name, count in bundle.counts]
        row = row_of(
            parts, point, terms, _offer(hardware, bundle), stale=_stale(bundle, known, terms)
        )
        rows.append(replace(row, instance_type=str(bundle), parts=parts, combined=HOW))
    if budget_usd is not None:
        left_out += [over_budget(row, budget_usd) for row in rows if price_of(row) > budget_usd]
        rows = [row for row in rows if price_of(row) <= budget_usd]
    rows.sort(key=lambda row: rank_of(row, terms.options.overlap))
    graph = subject.graph
    return Quote(
        graph=subject.id,
        graph_name=graph.name,
        batch_size=graph.batch_size,
        steps=terms.steps,
        deadline_s=terms.deadline_s,
        budget_usd=budget_usd,
        offers=rows,
        not_offered=left_out,
        minimum_gpus=min((row.gpus for row in rows), default=None),
        stale=any(row.stale for row in rows),
        overlap=terms.options.overlap,
        hardware=hardware.name,
        hardware_id=hardware.id,
        not_searched=not_searched(subject) or UNSET,
        program=program_text(assumed(terms.options, hardware), graph),
    )


def require_prices(
    hardware: Hardware, offers: Sequence[Offer], prices: Mapping[str, float]
) -> dict[str, GroupPrice]:
    """Returns the price of every group by name. Raises `BadInput`, which names `prices.GROUP`, as
    `group_prices` does and for a group that has none."""
    known = group_prices(hardware, offers, prices)
    for group in hardware.groups:
        if group.name not in known:
            raise BadInput(
                f"no offer has {group.kind} with {group.per_node} in a node",
                field=f"prices.{group.name}",
                expected="USD per hour of one device",
            )
    return known


def _part(hardware: Hardware, name: str, count: int, price: GroupPrice, terms: Terms) -> OfferPart:
    """Returns the devices of a group with their price; an instance is a node with any of them."""
    group, offer = hardware.group(name), price.offer
    return OfferPart(
        instance_type=name,
        instances=-(-count // group.per_node),
        gpus=count,
        gpu_kind=group.kind,
        usd_per_hour=price.of(count),
        price_as_of=terms.today.isoformat() if offer is None else offer.price_as_of,
        price_source=GIVEN if offer is None else offer.price_source,
    )


def _stale(bundle: Devices, known: Mapping[str, GroupPrice], terms: Terms) -> bool:
    offers = [known[name].offer for name, _ in bundle.counts]
    return any(stale(offer, terms.today) for offer in offers if offer is not None)


def _offer(hardware: Hardware, bundle: Devices) -> Offer:
    """Returns a row's location: the profile's cluster."""
    return Offer(hardware.name, str(bundle), 1, "", "", False, 0.0, UNDATED, GIVEN, hardware.name)
