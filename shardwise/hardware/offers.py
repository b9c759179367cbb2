"""Offers: what clouds rent, read from tables with the SkyPilot catalog's columns.

Columns are found by header: InstanceType, AcceleratorName, AcceleratorCount, Price and Region
are needed; SpotPrice, Provider, PriceAsOf, PriceSource, Hardware and NetworkGbps are used where
present. A row without a GPU (SkyPilot lists CPU instances too) is skipped.
"""

from __future__ import annotations

import csv
import datetime
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from shardwise.errors import BadInput
from shardwise.files import DATA, read_bounded
from shardwise.hardware.hardware import Hardware
from shardwise.hardware.profiles import load_hardware

NEEDED = ("InstanceType", "AcceleratorName", "AcceleratorCount", "Price", "Region")

UNDATED = "unknown"
"""`price_as_of` of a row without a date."""

PROFILE_OF_ACCELERATOR = {
    "V100": "dgx-v100-16gb",
    "K80": "p2.8xlarge",
    "A100-80GB": "dgx-a100-80gb",
    "H100": "dgx-h100",
    "H200": "h200-8",
    "L4": "l4",
}
"""The built-in profile of a SkyPilot accelerator name; others have none."""


@dataclass(frozen=True)
class Offer:
    """One instance type at one price, in USD per hour."""

    provider: str
    instance_type: str
    gpus_per_instance: int
    gpu_kind: str
    region: str
    spot: bool
    usd_per_hour: float
    price_as_of: str
    price_source: str
    hardware: str | None
    network_gbps: float | None = None

    def profile(self) -> Hardware:
        """Returns the hardware profile with this instance's GPU count and network."""
        if self.hardware is None:
            raise BadInput(f"no hardware profile for {self.gpu_kind}", field="offers")
        hardware = load_hardware(self.hardware)
        if hardware.per_node != self.gpus_per_instance:
            hardware = hardware.with_devices_per_node(self.gpus_per_instance)
        if self.network_gbps is not None:
            hardware = hardware.with_network(self.network_gbps * 1e9 / 8)
        return hardware


def read_offers(path: str | Path | None = None) -> list[Offer]:
    """Returns the offers of a file, or the shipped ones. `BadInput` names file, row and column."""
    if path is None:
        return parse_offers((DATA / "offers.csv").read_text("utf-8"), "offers.csv")
    try:
        text = read_bounded(path, "a CSV file").decode("utf-8")
    except UnicodeDecodeError:
        raise BadInput("not UTF-8", file=str(path), expected="a CSV file") from None
    return parse_offers(text, str(path))


def stale(offer: Offer, today: datetime.date, max_age_days: int = 90) -> bool:
    """Returns whether the price is older than that, or has no date."""
    try:
        as_of = datetime.date.fromisoformat(offer.price_as_of)
    except ValueError:
        return True
    return (today - as_of).days > max_age_days


def on_demand_usd_per_hour(hardware: Hardware, gpus: int, offers: Iterable[Offer]) -> float | None:
    """Returns what the whole instances that hold `gpus` devices of a profile cost, in USD per hour:
    the cheapest on demand of those that are offered as this profile, with as many devices in a
    node.

    None where no offer has it. The network between an offer's instances may differ from the
    profile's: `quote` takes that into account.
    """
    prices = [
        -(-gpus // offer.gpus_per_instance) * offer.usd_per_hour
        for offer in offers
        if offer.hardware == hardware.name
        and offer.gpus_per_instance == hardware.per_node
        and not offer.spot
    ]
    return min(prices, default=None)


def parse_offers(text: str, file: str) -> list[Offer]:
    """Returns the offers of a CSV text.

    `file` names it in errors. `BadInput` names row and column.
    """
    reader = csv.DictReader(text.splitlines())
    header = reader.fieldnames or []
    missing = [name for name in NEEDED if name not in header]
    if missing:
        raise BadInput(
            f"no column {missing[0]}", file=file, field="header", expected=", ".join(NEEDED)
        )
    offers = []
    for number, row in enumerate(reader, start=2):
        name = (row["AcceleratorName"] or "").strip()
        if not name:
            continue
        count = _number(row, "AcceleratorCount", file, number)
        if count != int(count) or count < 1:
            raise _bad(file, number, "AcceleratorCount", row["AcceleratorCount"], "a whole number")
        for column, spot in (("Price", False), ("SpotPrice", True)):
            if not (row.get(column) or "").strip():
                continue
            offers.append(_offer(row, name, int(count), column, spot, file, number))
    return offers


def _offer(
    row: dict[str, str], name: str, count: int, column: str, spot: bool, file: str, number: int
) -> Offer:
    network = row.get("NetworkGbps") or ""
    as_of = (row.get("PriceAsOf") or "").strip()
    if as_of:
        try:
            datetime.date.fromisoformat(as_of)
        except ValueError:
            raise _bad(file, number, "PriceAsOf", as_of, "a date as 2026-01-31") from None
    return Offer(
        (row.get("Provider") or Path(file).stem).strip(),
        (row["InstanceType"] or "").strip() or name,
        count,
        name,
        (row["Region"] or "").strip(),
        spot,
        _number(row, column, file, number),
        as_of or UNDATED,
        (row.get("PriceSource") or file).strip(),
        (row.get("Hardware") or "").strip() or PROFILE_OF_ACCELERATOR.get(name),
        _number(row, "NetworkGbps", file, number) if network.strip() else None,
    )


def _number(row: dict[str, str], column: str, file: str, number: int) -> float:
    value = row[column]
    try:
        parsed = float(value)
    except (TypeError, ValueError):
        raise _bad(file, number, column, value, "a number") from None
    if not 0 < parsed < float("inf"):
        raise _bad(file, number, column, value, "a finite number above 0")
    return parsed


def _bad(file: str, number: int, column: str, value: object, expected: str) -> BadInput:
    return BadInput(f"got {value!r}", file=file, field=f"row {number}: {column}", expected=expected)
