"""The chart of a profile's page: lines where the figures say, few ticks, whatever the profile."""

from __future__ import annotations

import datetime
from dataclasses import replace

import pytest

from service.page import units
from service.page.addresses import profile_address
from service.page.views.bandwidth_chart import Series, chart
from service.page.views.profile import MOST_SHAPES, MOST_SIZES, profile_context
from shardwise.hardware import hardware_document, load_hardware
from shardwise.hardware.hardware import CollectiveTable


def table(operation: str = "all_reduce", ranks: int = 2, count: int = 2) -> CollectiveTable:
    sizes = tuple(1024.0 * (i + 1) for i in range(count))
    return CollectiveTable(operation, 1, ranks, True, sizes, tuple(s / 1e9 for s in sizes))


def test_ten_times_the_bandwidth_is_one_decade_up() -> None:
    drawn = chart([Series("a", [(1024, 1e8), (2048, 1e9)]), Series("b", [(1024, 1e10)])])
    ticks = {label: y for y, label in drawn["y"]}
    (first, second), (third,) = (
        [float(place.split(",")[1]) for place in one["line"].split()] for one in drawn["series"]
    )
    assert [first, second, third] == [ticks["100 MB/s"], ticks["1 GB/s"], ticks["10 GB/s"]]
    assert [label for _, label in drawn["x"]] == ["1 KiB", "2 KiB"]
    assert drawn["series"][0]["colour"] != drawn["series"][1]["colour"]


@pytest.mark.parametrize("spread", [1.0, 1e3, 1e30, 1e250])
def test_few_ticks_for_any_range(spread: float) -> None:
    drawn = chart([Series("a", [(1.0, 1.0), (spread, spread)])])
    assert len(drawn["x"]) <= 6 and len(drawn["y"]) <= 6
    assert all(0 <= x <= drawn["width"] for x, _ in drawn["x"])


def test_tables_that_cannot_be_drawn_are_counted_and_large_ones_thinned() -> None:
    tables = (
        *(table(ranks=2 + i) for i in range(MOST_SHAPES + 1)),
        table("all_gather", count=10 * MOST_SIZES),
        table("theirs"),
        table("all_gather", ranks=1),
        replace(table(), nodes=-1, ranks_per_node=-2),
        replace(table(), times_s=(1e-300, 1e-300), sizes_bytes=(1e200, 1e201)),
    )
    hardware = replace(
        load_hardware("l4"), collectives=tables, measurement={"links": {"inside": ["x"]}, "n": {}}
    )
    drawn = profile_context(hardware_document(hardware))
    assert drawn["unsound"] == 4 and drawn["thinned"]
    assert [len(one["shapes"]) for one in drawn["operations"]] == [MOST_SHAPES, 1]
    assert len(drawn["operations"][1]["shapes"][0]["rows"]) == MOST_SIZES


def test_words_of_times_errors_and_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    now = datetime.datetime(2026, 11, 21, 12, tzinfo=datetime.UTC)
    monkeypatch.setattr(units, "_now", lambda: now)
    for past_s, text in ((3, "just now"), (40, "40 s ago"), (150, "2 min ago"),
                         (7200, "2 h ago"), (200_000, "2 days ago")):  # fmt: skip
        seen = (now - datetime.timedelta(seconds=past_s)).isoformat()
        assert units.ago(seen) == text
    assert [units.off(0.2), units.off(-0.05), units.off(None)] == ["+20.0 %", "−5.0 %", "–"]
    assert [units.rate(2.24e11), units.rate(9.999e8), units.rate(5)] == [
        "224 GB/s",
        "1.00 GB/s",
        "5 B/s",
    ]


def test_built_in_profiles_are_addressed_by_name() -> None:
    assert profile_address(load_hardware("l4").id) == "/hardware/l4"
    assert profile_address("sha256:0") == "/hardware/sha256%3A0"
