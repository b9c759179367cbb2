"""Offers: by header, refused by row and column."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from harness import fixed_day
from harness.commands import CODE, succeed
from shardwise.errors import BadInput
from shardwise.hardware import (
    load_hardware,
    offers,
    on_demand_usd_per_hour,
    parse_offers,
    read_offers,
    stale,
)


def utc_day() -> datetime.date:
    return datetime.datetime.now(tz=datetime.UTC).date()


HEADER = (
    "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,Region,GpuInfo,SpotPrice"
)
SKYPILOT = f"""{HEADER}
cpu_4x,,,4.0,16.0,0.2,eu,,
gpu_8x,H100,8.0,128,1600,23.6,eu,"gpus",10.0
gpu_1x,MI300X,1,16,200,2.0,eu,,
"""


def test_the_shipped_offers_are_sourced_and_dated() -> None:
    offers = read_offers()
    assert {o.gpu_kind for o in offers} == {"V100", "A100-80GB", "H100", "H200", "L4"}
    assert len({o.provider for o in offers}) >= 3
    for offer in offers:
        datetime.date.fromisoformat(offer.price_as_of)
        assert offer.price_source
        assert offer.region
        assert offer.profile().per_node == offer.gpus_per_instance


def test_a_skypilot_catalog_is_read_by_header(tmp_path: Path) -> None:
    path = tmp_path / "somecloud.csv"
    path.write_text(SKYPILOT)
    offers = read_offers(path)
    assert [(o.gpu_kind, o.spot, o.usd_per_hour) for o in offers] == [
        ("H100", False, 23.6),
        ("H100", True, 10.0),
        ("MI300X", False, 2.0),
    ]
    assert offers[0].provider == "somecloud"
    assert offers[0].hardware == "dgx-h100"
    assert offers[2].hardware == "gpu:MI300X"


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("A,B\n1,2\n", "no column InstanceType"),
        (SKYPILOT.replace("23.6", "free"), "row 3: Price"),
        (SKYPILOT.replace("23.6", "-1"), "row 3: Price"),
        (SKYPILOT.replace("23.6", "nan"), "row 3: Price"),
        (SKYPILOT.replace("8.0,128", "0.5,128"), "row 3: AcceleratorCount"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, text: str, where: str) -> None:
    path = tmp_path / "offers.csv"
    path.write_text(text)
    with pytest.raises(BadInput, match=where):
        read_offers(path)


HEADER = "InstanceType,AcceleratorName,AcceleratorCount,Price,Region"


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (f"{HEADER},Price\np5,H100,8,55.04,us,1\n", "header: the column Price occurs twice"),
        (f"{HEADER}\np5,H100\n", "row 2: no cell for AcceleratorCount"),
        (f'{HEADER}\n"p5,H100,8,55.04,us\n', "row 2: no cell for AcceleratorName"),
        (f"{HEADER}\np5,H100,8,1,055.04,us\n", "row 2: more cells than columns"),
    ],
)
def test_rows_of_other_columns_are_refused(text: str, match: str) -> None:
    with pytest.raises(BadInput, match=match):
        parse_offers(text, "offers.csv")


def test_quotes_ask_for_the_day_of_the_clock_and_here_for_one_day() -> None:
    before, found, after = utc_day(), fixed_day.clock_day(), utc_day()
    assert before <= found <= after
    assert offers.current_day() == fixed_day.DAY
    asked = "from shardwise.hardware import offers; print(offers.current_day())"
    assert succeed(CODE, asked).strip() == fixed_day.DAY.isoformat()


def test_old_and_undated_prices_are_stale(tmp_path: Path) -> None:
    path = tmp_path / "offers.csv"
    path.write_text(SKYPILOT)
    undated = read_offers(path)[0]
    assert stale(undated, datetime.date(2026, 1, 1))
    dated = read_offers()[0]
    as_of = datetime.date.fromisoformat(dated.price_as_of)
    assert not stale(dated, as_of + datetime.timedelta(days=90))
    assert stale(dated, as_of + datetime.timedelta(days=91))


def test_the_price_of_whole_instances(tmp_path: Path) -> None:
    """The cheapest on demand of those that hold a profile's node; spot prices do not count."""
    path = tmp_path / "offers.csv"
    rows = ("dear,H100,8,90,,a", "cheap,H100,8,40,10,a", "small,H100,1,1,,a", "other,L4,8,5,,a")
    header = "InstanceType,AcceleratorName,AcceleratorCount,Price,SpotPrice,Region"
    path.write_text("\n".join((header, *rows)) + "\n")
    offers, h100 = read_offers(path), load_hardware("dgx-h100")
    prices = [on_demand_usd_per_hour(h100, gpus, offers) for gpus in (1, 8, 9, 24)]
    assert prices == [40.0, 40.0, 80.0, 120.0]
    assert on_demand_usd_per_hour(load_hardware("p2.8xlarge"), 1, offers) is None
