"""Prices of a catalog as SkyPilot's own reader has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.schedulers.catalog import write_catalog
from harness.schedulers.environments import QUIET, skypilot
from shardwise.hardware import read_offers

pytestmark = pytest.mark.full


def test_prices_are_those_of_skypilot(tmp_path: Path) -> None:
    """On demand and at spot prices, in the cheapest region and in that of each offer."""
    catalogs = tmp_path / ".sky" / "catalogs"
    write_catalog(catalogs)
    offers = read_offers(f"skypilot:{catalogs}?spot")
    assert {o.provider for o in offers} == {"aws", "gcp", "nebius"}
    asked = [
        (o.provider, o.instance_type, o.gpu_kind, o.gpus_per_instance, region, o.spot)
        for o in offers
        for region in (o.region, None)
    ]
    theirs = skypilot().run("skypilot_prices.py", asked, tmp_path, **QUIET)
    ours = [o.usd_per_hour for o in offers for _ in range(2)]
    in_region, anywhere = theirs[::2], theirs[1::2]
    assert in_region == pytest.approx(ours[::2])
    # On demand SkyPilot wants one price in all regions of a call without a region.
    cheapest = [price for price, row in zip(anywhere, offers, strict=True) if row.spot]
    assert cheapest == pytest.approx([o.usd_per_hour for o in offers if o.spot])
