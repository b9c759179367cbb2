"""A log-log chart of bandwidth against size as coordinates for an inline SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log2, log10
from typing import Any

from service.page.units import rate, size

WIDTH, HEIGHT = 400, 270
LEFT, RIGHT, TOP, BOTTOM = 74, 22, 10, 34
COLOURS = 4
"""Colours of lines (page.css, `.s0` to `.s3`); further lines are dashed."""

MARKS = ("circle", "square", "diamond", "triangle")
_MOST_TICKS = 6


@dataclass(frozen=True)
class Series:
    """A line: its name and (bytes, bytes per second), both above 0."""

    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class _Axis:
    """Logarithms from `low` to `high` between two places."""

    low: float
    high: float
    start: float
    end: float

    def at(self, logarithm: float) -> float:
        share = (logarithm - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 2)


def chart(series: Sequence[Series]) -> dict[str, Any]:
    """Returns ticks, lines and marks; `series` has at least one point."""
    sizes = [log2(x) for one in series for x, _ in one.points]
    rates = [log10(y) for one in series for _, y in one.points]
    across = _Axis(min(sizes), max(sizes) + 1e-9, LEFT + 8, WIDTH - RIGHT - 8)
    low, high = floor(min(rates)), ceil(max(rates))
    up = _Axis(low, max(high, low + 1), HEIGHT - BOTTOM, TOP)
    return {
        "width": WIDTH,
        "height": HEIGHT,
        "left": LEFT,
        "right": WIDTH - RIGHT,
        "top": TOP,
        "bottom": HEIGHT - BOTTOM,
        "x": [(across.at(power), _plain(size(2.0**power))) for power in _ticks(across, 1)],
        "y": [(up.at(power), _plain(rate(10.0**power))) for power in _ticks(up, 0)],
        "series": [_line(i, one, across, up) for i, one in enumerate(series)],
    }


def _plain(text: str) -> str:
    """Returns a round number without its zeros: `4 KiB`."""
    return text.replace(".00 ", " ").replace(".0 ", " ")


def _ticks(axis: _Axis, least: int) -> list[int]:
    """Returns a few whole logarithms, evenly spaced."""
    low, high = ceil(axis.low), floor(axis.high)
    step = max(ceil((high - low) / (_MOST_TICKS - 1)), least, 1)
    return list(range(low, high + 1, step))


def _line(index: int, series: Series, across: _Axis, up: _Axis) -> dict[str, Any]:
    places = [(across.at(log2(x)), up.at(log10(y))) for x, y in series.points]
    return {
        "name": series.name,
        "colour": f"s{index % COLOURS}",
        "dashes": ("", "6 3", "2 3", "9 3 2 3")[index // COLOURS % 4],
        "line": " ".join(f"{x},{y}" for x, y in places),
        "marks": [_mark(MARKS[index % len(MARKS)], x, y) for x, y in places],
        "key": _mark(MARKS[index % len(MARKS)], 14, 6),
    }


def _mark(shape: str, x: float, y: float) -> str:
    """Returns the path of a mark about three units around a place."""
    if shape == "circle":
        return f"M{x - 3:g},{y:g}a3,3 0 1,0 6,0a3,3 0 1,0 -6,0z"
    if shape == "square":
        return f"M{x - 2.7:g},{y - 2.7:g}h5.4v5.4h-5.4z"
    if shape == "diamond":
        return f"M{x:g},{y - 3.8:g}l3.8,3.8l-3.8,3.8l-3.8,-3.8z"
    return f"M{x:g},{y - 3.6:g}l3.6,6.4h-7.2z"
