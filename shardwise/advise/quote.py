"""Mini-parallelism with prices: the fewest GPUs a job fits on, offers ranked by price.

TensorOpt §4.1 (Mini-parallelism). One offer is a number of instances of one kind; its price for
the job is usd_per_hour · instances · time · steps / 3600.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

from shardwise.advise.curve import curve_point, ranking_time
from shardwise.advise.options import Options, Progress, go_on, quiet
from shardwise.advise.search import Subject
from shardwise.graph import Graph, graph_id
from shardwise.hardware import Hardware, Offer, stale

QUOTE_SCHEMA = "shardwise.quote/1"


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
) -> dict[str, Any]:
    """Offers on which the job fits, cheapest first, as the document `shardwise.quote/1`.

    For every offer the instance counts 1, 2, 4, … up to `max_instances` are tried, and the counts
    between the last that is too small and the first that fits. Offers are ranked by the price of
    the whole job when `steps` is given, else by the price of a million samples (of an hour, when
    the batch size is unknown). `budget_usd` leaves out what costs more; `deadline_s` is for all
    steps and marks each offer.
    """
    options, progress = options or Options(), progress or quiet
    subject = Subject.of(graph)
    today = today or datetime.datetime.now(tz=datetime.UTC).date()
    rows: list[dict[str, Any]] = []
    reasons: list[dict[str, Any]] = []
    known: dict[tuple[str, int], dict[str, Any]] = {}
    for position, offer in enumerate(offers):
        go_on(progress, f"{offer.provider} {offer.instance_type}", position / len(offers))
        fitting, reason = _instances(subject, offer, max_instances, options, known)
        for instances, point in fitting:
            step_s = ranking_time(point, options)
            rows.append(
                _row(offer, instances, point, step_s, graph.batch_size, steps, deadline_s, today)
            )
        if not fitting:
            reasons.append(
                {
                    "provider": offer.provider,
                    "instance_type": offer.instance_type,
                    "region": offer.region,
                    "reason": reason,
                }
            )
    if budget_usd is not None:
        over = [row for row in rows if _price(row) > budget_usd]
        rows = [row for row in rows if _price(row) <= budget_usd]
        reasons += [
            {
                "provider": row["provider"],
                "instance_type": row["instance_type"],
                "region": row["region"],
                "reason": f"{row['instances']} instances cost {_price(row):.2f} USD, "
                f"over the budget of {budget_usd:.2f}",
            }
            for row in over
        ]
    rows.sort(key=_rank)
    return {
        "schema": QUOTE_SCHEMA,
        "graph": graph_id(graph),
        "graph_name": graph.name,
        "batch_size": graph.batch_size,
        "steps": steps,
        "deadline_s": deadline_s,
        "budget_usd": budget_usd,
        "offers": rows,
        "not_offered": reasons,
        "minimum_gpus": min((row["gpus"] for row in rows), default=None),
        "stale": any(row["stale"] for row in rows),
    }


def _instances(
    subject: Subject,
    offer: Offer,
    max_instances: int,
    options: Options,
    known: dict[tuple[str, int], dict[str, Any]],
) -> tuple[list[tuple[int, dict[str, Any]]], str]:
    """The instance counts worth offering: the fewest that fits, then doublings."""
    if offer.hardware is None:
        return [], f"no hardware profile for {offer.gpu_kind}"
    hardware = offer.profile()

    def at(instances: int) -> dict[str, Any]:
        key = (hardware.id, instances)
        if key not in known:
            known[key] = _point(subject, hardware, instances * offer.gpus_per_instance, options)
        return known[key]

    smallest = 1
    while smallest <= max_instances and not at(smallest)["feasible"]:
        smallest *= 2
    if smallest > max_instances:
        return [], at(smallest // 2).get("reason", "does not fit")
    for fewer in range(smallest // 2 + 1, smallest):
        if at(fewer)["feasible"]:
            smallest = fewer
            break
    counts = [smallest]
    while len(counts) < 3 and counts[-1] * 2 <= max_instances:
        counts.append(counts[-1] * 2)
    return [(n, at(n)) for n in counts if at(n)["feasible"]], ""


def _point(subject: Subject, hardware: Hardware, gpus: int, options: Options) -> dict[str, Any]:
    return curve_point(subject, hardware, gpus, options)[0]


def _row(
    offer: Offer,
    instances: int,
    point: dict[str, Any],
    step_s: float,
    batch: int | None,
    steps: int | None,
    deadline_s: float | None,
    today: datetime.date,
) -> dict[str, Any]:
    per_hour = offer.usd_per_hour * instances
    row: dict[str, Any] = {
        "provider": offer.provider,
        "instance_type": offer.instance_type,
        "instances": instances,
        "gpus": point["gpus"],
        "gpu_kind": offer.gpu_kind,
        "region": offer.region,
        "spot": offer.spot,
        "usd_per_hour": per_hour,
        "price_as_of": offer.price_as_of,
        "price_source": offer.price_source,
        "stale": stale(offer, today),
        "hardware": offer.hardware,
        "time_s": point["time_s"],
        "replayed_time_s": point["replayed_time_s"],
        "peak_bytes": point["peak_bytes"],
        "plan_id": point["plan_id"],
        "compute_shares": point["compute_shares"],
        "confidence": point["confidence"],
    }
    if batch is not None:
        row["usd_per_million_samples"] = per_hour / 3600 * step_s / batch * 1e6
    if steps is not None:
        row["total_s"] = step_s * steps
        row["usd_total"] = per_hour / 3600 * row["total_s"]
        if deadline_s is not None:
            row["meets_deadline"] = row["total_s"] <= deadline_s
    return row


def _price(row: dict[str, Any]) -> float:
    return float(row.get("usd_total", row["usd_per_hour"]))


def _rank(row: dict[str, Any]) -> tuple[bool, float, float]:
    price = row.get("usd_total", row.get("usd_per_million_samples", row["usd_per_hour"]))
    return (not row.get("meets_deadline", True), float(price), float(row["time_s"]))
