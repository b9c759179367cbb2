"""Rows of a cloud's `vms.csv` in SkyPilot's catalog: instances with accelerators.

Google's file has an instance type and its accelerators in rows of their own. The price is the sum
of both in one zone; the name of the instance type says which accelerators, and how many.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from shardwise.errors import BadInput
from shardwise.hardware.offers import NEEDED, bad_cell, number_of, table_rows

MAX_ROWS = 1_000_000
"""The most rows of a file; that of AWS has some 50,000."""

GOOGLE = "gcp"
FAMILIES = {
    "a2-highgpu": "A100",
    "a2-megagpu": "A100",
    "a2-ultragpu": "A100-80GB",
    "a3-highgpu": "H100",
    "a3-megagpu": "H100-MEGA",
    "a3-ultragpu": "H200",
    "a4-highgpu": "B200",
}
"""Google's machine families and their accelerators; their types end in the number, such as -8g
(Google Cloud: GPU machine types)."""

BY_VCPUS = {
    "g2-standard": ("L4", {4: 1, 8: 1, 12: 1, 16: 1, 24: 2, 32: 1, 48: 4, 96: 8}),
    "g4-standard": ("RTXPRO6000", {48: 1, 96: 2, 192: 4, 384: 8}),
}
"""Families whose types end in the number of vCPUs: accelerators by that."""

_SIZE = re.compile(r"'SizeInMiB': (\d{1,9})(?:\.0)?\b")


@dataclass(frozen=True)
class Instance:
    """An instance type with accelerators in a zone: USD per hour, None where it has no price.

    `memory_bytes` is what the catalog says that one accelerator has, None where it does not.
    """

    instance_type: str
    accelerator: str
    count: int
    region: str
    price: float | None
    spot_price: float | None
    memory_bytes: float | None


@dataclass(frozen=True)
class _Row:
    instance_type: str
    accelerator: str
    count: float
    region: str
    zone: str
    price: float | None
    spot_price: float | None
    memory_bytes: float | None


def instances_of(text: str, file: str, cloud: str) -> list[Instance]:
    """Returns the instances with whole accelerators, without those of parts of one.

    Raises `BadInput`, which names `file`, row and column.
    """
    rows = _rows(text, file)
    if cloud.lower() == GOOGLE:
        return _google(list(rows))
    return [_instance(row) for row in rows if row.accelerator and row.instance_type]


def _rows(text: str, file: str) -> Iterable[_Row]:
    for place, (number, cells) in enumerate(table_rows(text, file, NEEDED)):
        if place >= MAX_ROWS:
            raise BadInput("too many rows", file=file, expected=f"at most {MAX_ROWS:,}")
        row = _row(cells, file, number)
        if not row.accelerator or row.count == int(row.count):
            yield row


def _row(cells: Mapping[str, str | None], file: str, number: int) -> _Row:
    accelerator = _text(cells, "AcceleratorName")
    size = _SIZE.search(cells.get("GpuInfo") or "")
    return _Row(
        _text(cells, "InstanceType"),
        accelerator,
        number_of(cells, "AcceleratorCount", file, number) if accelerator else 0,
        _text(cells, "Region"),
        _text(cells, "AvailabilityZone"),
        _price(cells, "Price", file, number),
        _price(cells, "SpotPrice", file, number),
        float(size[1]) * 2**20 if size and int(size[1]) else None,
    )


def _text(cells: Mapping[str, str | None], column: str) -> str:
    return (cells.get(column) or "").strip()


def _price(cells: Mapping[str, str | None], column: str, file: str, number: int) -> float | None:
    """Returns a price; None for an empty cell, and for 0, which stands for an unknown one."""
    text = _text(cells, column)
    if text.lower() in ("", "nan"):
        return None
    try:
        price = float(text)
    except ValueError:
        raise bad_cell(file, number, column, text, "a price in USD, or nothing") from None
    if not 0 <= price < float("inf"):
        raise bad_cell(file, number, column, text, "a finite price, not below 0")
    return price or None


def _instance(row: _Row) -> Instance:
    return Instance(
        row.instance_type, row.accelerator, int(row.count), row.region, row.price, row.spot_price,
        row.memory_bytes,
    )  # fmt: skip


def _google(rows: list[_Row]) -> list[Instance]:
    """Returns Google's instances: hosts with the accelerators that they come with, by zone."""
    parts = {
        (row.accelerator, int(row.count), row.region, row.zone): row
        for row in rows
        if row.accelerator and not row.instance_type
    }
    instances = [_instance(row) for row in rows if row.accelerator and row.instance_type]
    for host in rows:
        comes_with = None if host.accelerator else google_accelerators(host.instance_type)
        part = None if comes_with is None else parts.get((*comes_with, host.region, host.zone))
        if part is not None:
            instances.append(
                Instance(
                    host.instance_type,
                    part.accelerator,
                    int(part.count),
                    host.region,
                    _sum(host.price, part.price),
                    _sum(host.spot_price, part.spot_price),
                    part.memory_bytes,
                )
            )
    return instances


def google_accelerators(instance_type: str) -> tuple[str, int] | None:
    """Returns the accelerators that a machine type comes with, and how many; None without any."""
    family, _, last = instance_type.rpartition("-")
    if family in FAMILIES and re.fullmatch(r"\d{1,2}g", last):
        return FAMILIES[family], int(last[:-1])
    name, counts = BY_VCPUS.get(family, ("", {}))
    count = counts.get(int(last)) if last.isdecimal() and len(last) < 5 else None
    return None if count is None else (name, count)


def _sum(host: float | None, part: float | None) -> float | None:
    return None if host is None or part is None else host + part
