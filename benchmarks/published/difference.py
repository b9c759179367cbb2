"""Where predictions made anew differ from the stored ones."""

from __future__ import annotations

import msgspec

from .stored import Stored

TOLERANCE = 1e-3


def difference(name: str, anew: Stored, stored: Stored) -> str | None:
    """A line about the figure of a run that differs most, if any does by more than TOLERANCE."""
    worst, line = TOLERANCE, None
    if anew.row != stored.row:
        return f"run {name}: the row has changed since it was predicted"
    before = msgspec.structs.asdict(stored)
    for field, value in msgspec.structs.asdict(anew).items():
        if field == "row":
            continue
        scale = max(abs(value), abs(before[field]))
        change = abs(value - before[field]) / scale if scale else 0.0
        if change > worst:
            worst = change
            line = (
                f"run {name}: {field} is now {value:.{6}g}, stored {before[field]:.6g} "
                f"({value / before[field] - 1:+.1%})"
                if before[field]
                else f"run {name}: {field} is now {value:.6g}, stored 0"
            )
    return line
