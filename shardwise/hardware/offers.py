"""Offers: what clouds rent, read from tables with the SkyPilot catalog's columns.

Columns are found by header: InstanceType, AcceleratorName, AcceleratorCount, Price and Region
are needed; SpotPrice, Provider, PriceAsOf, PriceSource, Hardware and NetworkGbps are used where
present. A row without a GPU (SkyPilot lists CPU instances too) is skipped. `offer_files.py` reads
files, `skypilot_catalog.py` the catalogs that SkyPilot itself has downloaded.
"""

from __future__ import annotations

import csv
import datetime
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shardwise.errors import BadInput
from shardwise.files import read_bounded
from shardwise.hardware.accelerators import offered_profile, profile_name
from shardwise.hardware.hardware import Hardware

NEEDED = ("InstanceType", "AcceleratorName", "AcceleratorCount", "Price", "Region")

WHOLE = "a whole number"

MAX_TABLE_BYTES = 64 * 2**20
"""The largest table of offers, in bytes."""

UNDATED = "unknown"
"""`price_as_of` of a row without a date."""


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
            raise BadInput(
                f"no hardware profile for {self.gpu_kind}",
                field="offers",
                expected="instances whose GPUs have a profile",
            )
        hardware = offered_profile(self.hardware, self.gpus_per_instance)
        if self.network_gbps is not None:
            hardware = hardware.with_network(self.network_gbps * 1e9 / 8)
        return hardware


def table_text(path: str | Path) -> str:
    """Returns the text of a CSV file. Raises `BadInput` if it is not UTF-8 or is too large."""
    try:
        return read_bounded(path, "a CSV file", MAX_TABLE_BYTES).decode("utf-8")
    except UnicodeDecodeError:
        raise BadInput("not UTF-8", file=str(path), expected="a CSV file") from None


def current_day() -> datetime.date:
    """Returns the day of the clock, in UTC. Quotes ask for it by the module, where tests set it."""
    return datetime.datetime.now(tz=datetime.UTC).date()


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
    offers = []
    for number, row in table_rows(text, file, NEEDED):
        name = (row["AcceleratorName"] or "").strip()
        if not name:
            continue
        count = number_of(row, "AcceleratorCount", file, number)
        if count != int(count):
            raise bad_cell(file, number, "AcceleratorCount", row["AcceleratorCount"], WHOLE)
        for column, spot in (("Price", False), ("SpotPrice", True)):
            if not (row.get(column) or "").strip():
                continue
            offers.append(_offer(row, name, int(count), column, spot, file, number))
    return offers


def _check_width(
    row: Mapping[str | None, object], needed: Sequence[str], file: str, number: int
) -> None:
    short = next((name for name in needed if row[name] is None), None)
    if short is not None or None in row:
        raise BadInput(
            "more cells than columns" if short is None else f"no cell for {short}",
            file=file,
            field=f"row {number}",
            expected="a cell for each column, texts with commas in quotes",
        )


def table_rows(
    text: str, file: str, needed: Sequence[str]
) -> Iterator[tuple[int, dict[str, str | None]]]:
    """Yields the rows of a CSV text by column, each with the number of its (last) line.

    A column that a row does not reach is None. Raises `BadInput` if one of the `needed` columns is
    missing or a column occurs twice, for a row that does not reach the needed columns or has more
    than there are, and for what is no CSV.
    """
    reader = csv.DictReader(text.splitlines())
    read = 0
    try:
        header = reader.fieldnames or []
        missing = [name for name in needed if name not in header]
        if missing:
            raise BadInput(
                f"no column {missing[0]}", file=file, field="header", expected=", ".join(needed)
            )
        twice = next((name for name in header if header.count(name) > 1), None)
        if twice is not None:
            raise BadInput(
                f"the column {twice[:40]} occurs twice",
                file=file,
                field="header",
                expected="each column once",
            )
        read = 1
        for row in reader:
            read = reader.line_num
            _check_width(row, needed, file, read)
            yield read, row
    except csv.Error as error:
        raise BadInput(
            f"not CSV: {error}", file=file, field=f"row {read + 1}", expected="a CSV file"
        ) from None


def _offer(
    row: Mapping[str, str | None],
    name: str,
    count: int,
    column: str,
    spot: bool,
    file: str,
    number: int,
) -> Offer:
    network = row.get("NetworkGbps") or ""
    as_of = (row.get("PriceAsOf") or "").strip()
    if as_of:
        try:
            datetime.date.fromisoformat(as_of)
        except ValueError:
            raise bad_cell(file, number, "PriceAsOf", as_of, "a date as 2026-01-31") from None
    return Offer(
        (row.get("Provider") or Path(file).stem).strip(),
        (row["InstanceType"] or "").strip() or name,
        count,
        name,
        (row["Region"] or "").strip(),
        spot,
        number_of(row, column, file, number),
        as_of or UNDATED,
        (row.get("PriceSource") or file).strip(),
        (row.get("Hardware") or "").strip() or profile_name(name, count),
        number_of(row, "NetworkGbps", file, number) if network.strip() else None,
    )


def number_of(row: Mapping[str, str | None], column: str, file: str, number: int) -> float:
    """Returns a cell as a finite number above 0. Raises `BadInput` that names row and column."""
    value = row[column]
    try:
        parsed = float(value or "")
    except ValueError:
        raise bad_cell(file, number, column, value, "a number") from None
    if not 0 < parsed < float("inf"):
        raise bad_cell(file, number, column, value, "a finite number above 0")
    return parsed


def bad_cell(file: str, number: int, column: str, value: str | None, expected: str) -> BadInput:
    """Returns the error for a cell."""
    shown = None if value is None else value[:80]
    return BadInput(f"got {shown!r}", file=file, field=f"row {number}: {column}", expected=expected)
