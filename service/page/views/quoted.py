"""Answers of quotes prepared for their template: offers, or the parts of one profile."""

from __future__ import annotations

from typing import Any

from service.page.views.piped import piped
from shardwise.answers.profile_quote import GIVEN
from shardwise.documents.frontier import axes_of


def quote_context(result: dict[str, Any]) -> dict[str, Any]:
    """Returns the offers, which columns they have, and what a quote over parts has besides."""
    _, time = axes_of(bool(result.get("overlap")))
    offers = [piped(row, time) for row in result["offers"]]
    return {
        "offers": offers,
        "time": time,
        "parts_of": result.get("hardware"),
        "recommended": _recommended(offers),
        "prices": _prices(offers) if "hardware" in result else [],
        "not_offered": _same_reasons(result.get("not_offered", [])),
        "columns": {
            name: any(row.get(name) is not None for row in offers)
            for name in (
                "usd_total",
                "usd_per_million_samples",
                "meets_deadline",
                "total_s",
                "piped",
            )
        },
    }


def _recommended(offers: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Returns the cheapest row, of those within the deadline if there is one; None if none is."""
    first = offers[0] if offers else None
    return None if first is None or first.get("meets_deadline") is False else first


def _prices(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the price of every group: of one device at the question's price, else of a node."""
    prices: dict[str, dict[str, Any]] = {}
    for row in rows:
        for part in row["parts"]:
            given = part["price_source"] == GIVEN
            units = part["gpus"] if given else part["instances"]
            usd = part["usd_per_hour"] / units
            prices.setdefault(part["instance_type"], {**part, "given": given, "usd": usd})
    return [prices[name] for name in sorted(prices)]


def _same_reasons(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns one row for an instance type with one reason, its regions together."""
    reasons: dict[tuple[str, str, str], dict[str, Any]] = {}
    for row in rows:
        key = (row["provider"], row["instance_type"], row["reason"])
        entry = reasons.setdefault(key, {**row, "regions": []})
        if row["region"] not in entry["regions"]:
            entry["regions"].append(row["region"])
    return list(reasons.values())
