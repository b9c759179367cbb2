"""Numbers as people read them. Bytes in binary units, seconds from µs to days, US dollars."""

from __future__ import annotations

import datetime
from typing import Any

MISSING = "–"
FILTERS = (
    "size", "seconds", "count", "usd", "percent", "moment", "ago", "off", "rate", "short"
)  # fmt: skip
"""Functions here that templates use as filters."""


def size(value: float | None) -> str:
    """Returns bytes as `13.5 GiB`."""
    if value is None:
        return MISSING
    for unit, power in (("TiB", 4), ("GiB", 3), ("MiB", 2), ("KiB", 1)):
        if abs(value) >= 1024**power:
            return f"{_three(value / 1024**power)} {unit}"
    return f"{value:.0f} B"


def seconds(value: float | None) -> str:
    """Returns a duration as `37.1 ms` or `2.5 h`."""
    if value is None:
        return MISSING
    if value == 0:
        return "0 s"
    if value >= 172_800:
        return f"{_three(value / 86400)} days"
    if value >= 7200:
        return f"{_three(value / 3600)} h"
    if value >= 120:
        return f"{_three(value / 60)} min"
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if value * factor >= 1:
            return f"{_three(value * factor)} {unit}"
    return f"{_three(value * 1e9)} ns"


def count(value: float | None) -> str:
    """Returns a count as `124 M`; in full below ten thousand."""
    if value is None:
        return MISSING
    for unit, factor in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= factor and value >= 10_000:
            return f"{_three(value / factor)} {unit}"
    return f"{value:,.0f}" if float(value).is_integer() else _three(value)


def usd(value: float | None) -> str:
    """Returns a price as `$1,234.50`."""
    if value is None:
        return MISSING
    return f"${value:,.2f}" if value >= 0.01 or value == 0 else f"${value:.2g}"


def percent(value: float | None) -> str:
    """Returns a fraction as `3.2 %`."""
    if value is None:
        return MISSING
    return f"{_three(100 * value)} %" if value >= 1e-4 else ("0 %" if value == 0 else "< 0.01 %")


def moment(text: str | None) -> str:
    """Returns a time of a document, to the second, in UTC."""
    if not text:
        return MISSING
    time = datetime.datetime.fromisoformat(text)
    return time.strftime("%Y-%m-%d %H:%M:%S UTC")


def ago(text: str | None) -> str:
    """Returns how long ago a time of a document is: `40 s ago`."""
    if not text:
        return MISSING
    past_s = (_now() - datetime.datetime.fromisoformat(text)).total_seconds()
    if past_s < 10:
        return "just now"
    for unit, length_s in (("day", 86_400), ("h", 3600), ("min", 60)):
        if past_s >= 2 * length_s:
            number = int(past_s // length_s)
            return f"{number} {unit}{'s' if unit == 'day' else ''} ago"
    return f"{past_s:.0f} s ago"


def off(value: float | None) -> str:
    """Returns a relative error with its sign: `+3.2 %`."""
    if value is None:
        return MISSING
    return f"{100 * value:+.1f} %".replace("-", "−")


def rate(value: float | None) -> str:
    """Returns a rate as `12.3 GB/s`: decimal units, as links are sold and nccl-tests prints."""
    if value is None:
        return MISSING
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= 0.9995 * factor:
            return f"{_three(value / factor)} {unit}/s"
    return f"{value:.0f} B/s"


def short(text: Any, letters: int = 12) -> str:
    """Returns the beginning of an id."""
    bare = str(text).removeprefix("sha256:")
    return bare if len(bare) <= letters else bare[:letters] + "…"


def _now() -> datetime.datetime:
    return datetime.datetime.now(tz=datetime.UTC)


def _three(value: float) -> str:
    """Returns a number with three significant digits, without an exponent."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
