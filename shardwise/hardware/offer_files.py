"""Offers by what `--offers` says: a table of one's own, or SkyPilot's catalog."""

from __future__ import annotations

from pathlib import Path

from shardwise.files import DATA
from shardwise.hardware.offers import Offer, parse_offers, table_text
from shardwise.hardware.skypilot_catalog import is_catalog, read_catalog


def read_offers(source: str | Path | None = None) -> list[Offer]:
    """Returns the offers of a CSV file, of SkyPilot's catalog, or the shipped ones.

    `source`: None, a path, or `skypilot[:FOLDER][?cloud=…&region=…&gpu=…&spot]`
    (`skypilot_catalog.py`); a file named `vms.csv` is of the catalog too. Raises `BadInput`, which
    names file, row and column.
    """
    if source is None:
        return parse_offers((DATA / "offers.csv").read_text("utf-8"), "offers.csv")
    if is_catalog(str(source)):
        return read_catalog(str(source))
    return parse_offers(table_text(source), str(source))
