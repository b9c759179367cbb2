"""`shardwise.quote/1`: offers on which a job fits, cheapest first."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from shardwise.documents.common import ComputeShares, Expected
from shardwise.documents.curve import DoesNotFit
from shardwise.documents.pipeline_point import PipelinePoint

NO_PROFILE = "no hardware profile for "
"""The reason, before a GPU's name, why an offer without a profile is left out."""

MOST_SOURCES = 2
"""Sources of prices that a line names."""


class OfferPart(msgspec.Struct, frozen=True):
    """Instances of one kind in an offer that combines several, or the devices of one group of a
    profile. `usd_per_hour` is that of all of them."""

    instance_type: str
    instances: int
    gpus: int
    gpu_kind: str
    usd_per_hour: float
    price_as_of: str
    price_source: str


class OfferRow(msgspec.Struct, frozen=True):
    """A number of instances on which the job fits, with its time and its price.

    Of several kinds together `parts` says what of each, `bundle` how many devices of which group,
    `combined` how they were taken for one cluster; prices and counts are sums. With `pipeline`, the
    fastest that was asked for, times, peak and `plan_id` are its own, and `compute_shares` are
    null: it is faster than every strategy without one, or none of these fits. `expected` is as in a
    plan's prediction, of strategies without a pipeline.
    """

    provider: str
    instance_type: str
    instances: int
    gpus: int
    gpu_kind: str
    region: str
    spot: bool
    usd_per_hour: float
    price_as_of: str
    price_source: str
    stale: bool
    hardware: str | None
    time_s: float
    replayed_time_s: float
    peak_bytes: int
    plan_id: str
    compute_shares: ComputeShares | None
    confidence: str
    usd_per_million_samples: float | UnsetType = UNSET
    total_s: float | UnsetType = UNSET
    usd_total: float | UnsetType = UNSET
    meets_deadline: bool | UnsetType = UNSET
    bundle: str | UnsetType = UNSET
    parts: list[OfferPart] | UnsetType = UNSET
    combined: str | UnsetType = UNSET
    pipeline: PipelinePoint | UnsetType = UNSET
    expected: Expected | UnsetType = UNSET


class NotOffered(msgspec.Struct, frozen=True):
    """An offer that is left out, and why.

    Where nothing fits on it, `does_not_fit` are the counts of GPUs that were tried, as ranges.
    """

    provider: str
    instance_type: str
    region: str
    reason: str
    does_not_fit: list[DoesNotFit] | UnsetType = UNSET


class Combination(msgspec.Struct, frozen=True):
    """A combination of offers that was searched: its instances, what it costs an hour, and how it
    ended."""

    instances: str
    bundle: str
    usd_per_hour: float
    outcome: str


class Combinations(msgspec.Struct, frozen=True):
    """Which offers were taken together: at most `most_kinds` of them in one.

    `rule` says in words which may be, `considered` is how many could be better than every single
    one, and `tried` are those that were searched, at most `most_tried`.
    """

    most_kinds: int
    most_tried: int
    rule: str
    considered: int
    tried: list[Combination]


class Quote(msgspec.Struct, frozen=True, tag_field="schema", tag="shardwise.quote/1"):
    """Offers ranked by price; `minimum_gpus` is the fewest GPUs of any, null without an offer.

    Prices and deadlines go by `replayed_time_s` with `overlap`, else by `time_s`. `combinations` is
    there where offers might be combined, `hardware` where parts of one profile were quoted.
    `program` says in words what runs the steps, where that is the same on all offers.
    `not_searched` is as in a frontier.
    """

    graph: str
    graph_name: str
    batch_size: int | None
    steps: int | None
    deadline_s: float | None
    budget_usd: float | None
    offers: list[OfferRow]
    not_offered: list[NotOffered]
    minimum_gpus: int | None
    stale: bool
    overlap: bool = False
    combinations: Combinations | UnsetType = UNSET
    hardware: str | UnsetType = UNSET
    hardware_id: str | UnsetType = UNSET
    not_searched: list[str] | UnsetType = UNSET
    program: str | UnsetType = UNSET


def step_s(row: OfferRow, overlap: bool) -> float:
    """Returns how long a step takes on an offer: replayed with `overlap`, else the sum."""
    return row.replayed_time_s if overlap else row.time_s


def prices_dated(rows: Sequence[OfferRow]) -> str:
    """Returns of which days the prices of a quote are and, where they are few, from where."""
    days = sorted({row.price_as_of for row in rows})
    dated = [day for day in days if day[:1].isdigit()]
    said = " to ".join(dict.fromkeys((dated[0], dated[-1]))) if dated else "an unknown day"
    if dated and len(dated) < len(days):
        said += ", some without a date"
    sources = sorted({row.price_source for row in rows})
    named = f" ({'; '.join(sources)})" if len(sources) <= MOST_SOURCES else ""
    return f"Prices as of {said}{named}."
