"""SkyPilot's catalog as offers: what is chosen, which profile stands for it, of which day it is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.schedulers.catalog import write_catalog
from shardwise.errors import BadInput
from shardwise.hardware import Offer, read_offers
from shardwise.hardware.accelerators import profile_name
from shardwise.hardware.skypilot_rows import google_accelerators

DAY_S = 24 * 3600.0


@pytest.fixture
def catalogs(tmp_path: Path) -> Path:
    write_catalog(tmp_path / "old", "v7")
    (tmp_path / "old" / "v7" / "aws" / "vms.csv").unlink()
    write_catalog(tmp_path / "old")
    return tmp_path / "old"


def _prices(offers: list[Offer]) -> dict[tuple[str, bool], tuple[str, float]]:
    return {(o.instance_type, o.spot): (o.region, o.usd_per_hour) for o in offers}


def test_an_instance_type_is_offered_at_its_cheapest(catalogs: Path) -> None:
    """Also where Google sells machines and accelerators apart; parts of a GPU are left out."""
    assert _prices(read_offers(f"skypilot:{catalogs}")) == {
        ("h100-1", False): ("eu-north1", 3.0),
        ("h100-8", False): ("us-central1", 23.0),
        ("b200-8", False): ("us-central1", 44.0),
        ("g5.48xlarge", False): ("us-east-1", 16.0),
        ("p4d.24xlarge", False): ("us-east-1", 22.0),
        ("p5.48xlarge", False): ("us-east-1", 55.0),
        ("dl1.24xlarge", False): ("us-east-1", 13.0),
        ("a3-highgpu-8g", False): ("us-central1", 88.0),
        ("g2-standard-24", False): ("us-central1", 2.0),
    }


def test_what_is_offered_may_be_chosen(catalogs: Path) -> None:
    spot = read_offers(f"skypilot:{catalogs}?cloud=AWS,nebius&gpu=h100&spot")
    assert _prices(spot) == {
        ("h100-1", False): ("eu-north1", 3.0),
        ("h100-1", True): ("eu-north1", 1.25),
        ("h100-8", False): ("us-central1", 23.0),
        ("h100-8", True): ("eu-north1", 10.0),
        ("p5.48xlarge", False): ("us-east-1", 55.0),
        ("p5.48xlarge", True): ("us-east-1", 20.0),
    }
    there = {("p5.48xlarge", False): ("eu-west-1", 57.0)}
    assert _prices(read_offers(f"skypilot:{catalogs}?region=eu-west-1")) == there
    file = catalogs / "v8" / "aws" / "vms.csv"
    assert _prices(read_offers(f"{file}?region=eu-west-1")) == there
    assert read_offers(file) == read_offers(f"skypilot:{file.parent}")


def test_the_newest_catalog_of_the_home_is_found(
    catalogs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(BadInput, match=r"there is no CLOUD/vms\.csv"):
        read_offers("skypilot")
    (tmp_path / ".sky").mkdir()
    catalogs.rename(tmp_path / ".sky" / "catalogs")
    offers = read_offers("skypilot?cloud=aws")
    assert {o.price_source for o in offers} == {"SkyPilot catalog v8/aws/vms.csv"}
    by_type = {o.instance_type: o for o in offers}
    assert by_type["p5.48xlarge"].network_gbps == 3200
    assert by_type["p5.48xlarge"].profile().per_node == 8


def test_prices_have_the_day_of_the_download(catalogs: Path) -> None:
    """SkyPilot touches the file when a download fails, and then not the checksum."""
    file = catalogs / "v8" / "nebius" / "vms.csv"
    os.utime(file, (20_000 * DAY_S, 20_000 * DAY_S))
    assert {o.price_as_of for o in read_offers(file)} == {"2024-10-04"}
    checksum = catalogs / "v8" / ".meta" / "nebius" / "vms.csv.md5"
    checksum.parent.mkdir(parents=True)
    checksum.write_text("0" * 32)
    os.utime(checksum, (19_990 * DAY_S, 19_990 * DAY_S))
    assert {o.price_as_of for o in read_offers(file)} == {"2024-09-24"}


def test_profiles_stand_for_accelerators(catalogs: Path) -> None:
    named = {o.instance_type: o.hardware for o in read_offers(f"skypilot:{catalogs}")}
    assert named["p4d.24xlarge"] == "dgx-a100-40gb"
    assert named["b200-8"] == "b200-8"
    assert named["g5.48xlarge"] == "gpu:A10G"
    assert named["dl1.24xlarge"] is None
    g5 = next(o for o in read_offers(f"skypilot:{catalogs}") if o.hardware == "gpu:A10G")
    assert (g5.profile().per_node, g5.profile().devices[0].kind) == (8, "A10G-24GB")


@pytest.mark.parametrize(
    ("name", "count", "gib", "profile"),
    [
        ("A100", 8, None, "dgx-a100-40gb"),
        ("A100", 8, 80, "dgx-a100-80gb"),
        ("H100-MEGA", 8, 80, "dgx-h100"),
        ("H100", 8, 94, None),
        ("MI300X", 8, 192, "gpu:MI300X"),
        ("MI300X", 16, 192, None),
        ("RTXPRO6000", 4, None, "gpu:RTX-PRO-6000"),
        ("GTX1660S", 1, 6, None),
        ("tpu-v6e-8", 1, None, None),
    ],
)
def test_a_profile_has_the_devices_and_the_memory(
    name: str, count: int, gib: int | None, profile: str | None
) -> None:
    assert profile_name(name, count, None if gib is None else gib * 2**30) == profile


@pytest.mark.parametrize(
    ("instance_type", "accelerators"),
    [
        ("a2-megagpu-16g", ("A100", 16)),
        ("g2-standard-32", ("L4", 1)),
        ("g2-standard-48", ("L4", 4)),
        ("a3-highgpu-8g-nolssd", None),
        ("g2-standard-5", None),
        ("n1-standard-8", None),
        ("", None),
    ],
)
def test_google_names_say_the_accelerators(
    instance_type: str, accelerators: tuple[str, int] | None
) -> None:
    assert google_accelerators(instance_type) == accelerators


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("24.00", "dear", "row 4: Price: got 'dear'"),
        ("24.00", "-1", "row 4: Price: got '-1'"),
        ("24.00", "inf", "row 4: Price: got 'inf'"),
        ("10.00", "many", "row 4: SpotPrice: got 'many'"),
        ("H100,8,128,1600,24", "H100,none,128,1600,24", "row 4: AcceleratorCount: got 'none'"),
        ("AcceleratorName", "Accelerator", "no column AcceleratorName"),
        ("eu-north1,,\n", f'eu-north1,"{"x" * 200_000}",\n', "row 2"),
    ],
)
def test_bad_rows_are_named(catalogs: Path, old: str, new: str, problem: str) -> None:
    file = catalogs / "v8" / "nebius" / "vms.csv"
    file.write_text(file.read_text().replace(old, new, 1))
    with pytest.raises(BadInput) as caught:
        read_offers(file)
    assert str(file) in str(caught.value)
    assert problem in str(caught.value)


def test_a_price_of_nothing_is_none(catalogs: Path) -> None:
    file = catalogs / "v8" / "nebius" / "vms.csv"
    file.write_text(file.read_text().replace("44.00", "0.0").replace("23.00", ""))
    prices = _prices(read_offers(file))
    assert prices["h100-8", False] == ("eu-north1", 24.0)
    assert ("b200-8", False) not in prices


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("?cloud=aw", "no cloud 'aw': did you mean aws"),
        ("?region=us-east", "no region 'us-east': did you mean us-east-1"),
        ("?gpu=H200", "no gpu 'H200'"),
        ("?colour=red", "got 'colour=red'"),
        ("?spot=1&spot=2", "got 'spot=1&spot=2'"),
        ("?cloud=", "got 'cloud='"),
        ("?cloud=aws&gpu=B200", "no gpu 'B200'"),
    ],
)
def test_what_the_catalog_lacks_is_said(catalogs: Path, query: str, problem: str) -> None:
    with pytest.raises(BadInput, match=problem.replace("?", r"\?")):
        read_offers(f"skypilot:{catalogs}{query}")


def test_large_files_are_refused(catalogs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardwise.hardware.skypilot_rows.MAX_ROWS", 4)
    with pytest.raises(BadInput, match="too many rows"):
        read_offers(f"skypilot:{catalogs}")
    monkeypatch.setattr("shardwise.hardware.offers.MAX_TABLE_BYTES", 100)
    with pytest.raises(BadInput, match="at most 100 bytes"):
        read_offers(f"skypilot:{catalogs}")
