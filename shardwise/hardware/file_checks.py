"""What is checked of a profile's file before its figures are: names of members, and units."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from shardwise.errors import BadInput
from shardwise.near import near

_MISSPELT = 0.88
"""The likeness from which an unknown member counts as a known one misspelt."""

_LEAST = {
    "memory_bytes": (1e6, "bytes: 80 GB are 80e9"),
    "memory_bandwidth_bytes_per_s": (1e6, "bytes per second: 3.35 TB/s are 3.35e12"),
    "bandwidth_bytes_per_s": (1e4, "bytes per second: 400 Gb/s are 50e9"),
}
"""Below these a figure is in other units than its member's name says, and what it should be."""

_LEAST_PEAK = 1e6


def check_members(
    value: Any,
    kind: type[msgspec.Struct],
    inner: Mapping[str, type[msgspec.Struct]],
    file: str | None,
) -> None:
    """Raises `BadInput` for a member that is nearly one of `kind`'s that the mapping lacks, here
    and in lists of `inner`. Others are passed over: later releases may have them."""
    if isinstance(value, Mapping):
        _check_names(value, kind, "", file)
        for name, own in inner.items():
            members = value.get(name)
            for place, one in enumerate(members if isinstance(members, list) else ()):
                if isinstance(one, Mapping):
                    _check_names(one, own, f"{name}[{place}].", file)


def check_units(value: Any, at: str, file: str | None) -> None:
    """Raises `BadInput` for a device or level whose figures are no bytes or operations a second."""
    for name, (least, unit) in _LEAST.items():
        figure = getattr(value, name, None)
        if figure is not None and 0 < figure < least:
            raise BadInput(f"got {figure:g}", file=file, field=f"{at}.{name}", expected=unit)
    for dtype, figure in getattr(value, "peak_flops_per_s", {}).items():
        if 0 < figure < _LEAST_PEAK:
            raise BadInput(
                f"got {figure:g}",
                file=file,
                field=f"{at}.peak_flops_per_s.{dtype[:40]}",
                expected="operations per second: 989 TFLOP/s are 989e12",
            )


def _check_names(
    value: Mapping[str, Any], kind: type[msgspec.Struct], at: str, file: str | None
) -> None:
    known = [field.encode_name for field in msgspec.structs.fields(kind)]
    missing = [name for name in known if name not in value]
    for name in map(str, value):
        meant = [] if name in known else near(name, missing, 1, least=_MISSPELT, parts=False)
        if meant:
            raise BadInput(
                f"unknown member: did you mean {meant[0]}?",
                file=file,
                field=f"{at}{name[:60]}",
                expected="a member of a profile",
            )
