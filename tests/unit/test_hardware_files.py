"""Profiles that people write: names of members, units, and how editors write files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardwise.errors import BadInput
from shardwise.files import DATA
from shardwise.hardware import load_hardware

FILE = DATA / "hardware" / "l4.json"


def written(folder: Path, change: Callable[[Any], object], head: bytes = b"") -> str:
    document = json.loads(FILE.read_text())
    change(document)
    path = folder / "own.json"
    path.write_bytes(head + json.dumps(document).encode())
    return str(path)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda d: d["devices"][0].update(memory_bytes=80), "got 80 .expected bytes: 80 GB are"),
        (lambda d: d["devices"][0].update(memory_bandwidth_bytes_per_s=3350),
         "memory_bandwidth_bytes_per_s: got 3350 .expected bytes per second"),
        (lambda d: d["levels"][1].update(bandwidth_bytes_per_s=400),
         "levels.1..bandwidth_bytes_per_s: got 400 .expected bytes per second: 400 Gb/s are 50e9"),
        (lambda d: d["devices"][0]["peak_flops_per_s"].update(bfloat16=121.0),
         "peak_flops_per_s.bfloat16: got 121 .expected operations per second"),
        (lambda d: d["devices"][0].update(sustained_clocks=0.9), "did you mean sustained_clock"),
        (lambda d: d["levels"][0].update(over_subscription=2), "did you mean oversubscription"),
        (lambda d: d.update(packings=True), "packings: unknown member: did you mean packing"),
    ],
)  # fmt: skip
def test_other_units_and_names_are_refused(
    tmp_path: Path, change: Callable[[Any], object], match: str
) -> None:
    with pytest.raises(BadInput, match=match):
        load_hardware(written(tmp_path, change))


def test_members_of_later_releases_are_passed_over(tmp_path: Path) -> None:
    load_hardware(written(tmp_path, lambda d: d.update(colour="red")))


def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path: Path) -> None:
    """Of every file that is read: profiles, plans, graphs, trainers' files."""
    own = load_hardware(written(tmp_path, lambda d: None, head=b"\xef\xbb\xbf"))
    assert own.devices == load_hardware("l4").devices
