"""The page of a quote over the parts of a profile: what it recommends, and what groups cost."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("fastapi")

from harness.page.rendered import rendered
from service.page.views.quoted import quote_context
from shardwise.answers.profile_quote import GIVEN


def part(group: str, gpus: int, usd: float, source: str = GIVEN, nodes: int = 1) -> dict[str, Any]:
    return {
        "instance_type": group, "instances": nodes, "gpus": gpus, "gpu_kind": group.upper(),
        "usd_per_hour": usd, "price_as_of": "2026-01-01", "price_source": source,
    }  # fmt: skip


def row(*parts: dict[str, Any], total_s: float, in_time: bool) -> dict[str, Any]:
    bundle = ",".join(f"{one['instance_type']}={one['gpus']}" for one in parts)
    return {
        "bundle": bundle, "parts": list(parts), "time_s": 1.0, "replayed_time_s": 1.0,
        "usd_per_hour": sum(one["usd_per_hour"] for one in parts), "usd_total": 2.0,
        "total_s": total_s, "meets_deadline": in_time, "peak_bytes": 2**30,
    }  # fmt: skip


def quote(*rows: dict[str, Any], left_out: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    return {
        "graph_name": "mlp", "steps": 10000, "deadline_s": 100.0, "budget_usd": None,
        "minimum_gpus": 1, "stale": False, "overlap": True, "hardware": "two kinds",
        "offers": list(rows), "not_offered": list(left_out),
    }  # fmt: skip


FAST = row(part("a", 2, 5.0), part("b", 4, 6.0, "a list", nodes=2), total_s=90.0, in_time=True)
SLOW = row(part("b", 2, 3.0, "a list"), total_s=120.0, in_time=False)


def test_the_cheapest_part_within_the_deadline_is_recommended() -> None:
    page = rendered("quote", quote(FAST, SLOW))
    assert page.count("recommended</span>") == 1
    assert "$2.00 for 10,000 steps in 90.0 s, the cheapest within the deadline" in page
    assert 'aria-label="Plan for a=2,b=4"' in page


def test_nothing_is_recommended_that_is_late() -> None:
    page = rendered("quote", quote(SLOW))
    assert "recommended" not in page.lower()
    assert "No part is within the deadline; the shortest time is 2.00 min." in page


def test_what_fits_nowhere_says_why() -> None:
    reason = {"provider": "two kinds", "instance_type": "a=2", "region": "", "reason": "too large"}
    page = rendered("quote", quote(left_out=(reason,)))
    assert "It fits no part of two kinds that may be offered" in page
    assert '<td class="long">too large</td>' in page
    assert "Regions" not in page


def test_prices_are_for_one_device_or_for_a_node() -> None:
    prices = quote_context(quote(FAST, SLOW))["prices"]
    known = [(price["instance_type"], price["usd"], price["given"]) for price in prices]
    assert known == [("a", 2.5, True), ("b", 3.0, False)]
