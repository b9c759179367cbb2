"""Linear or logarithmic axes: which read better, and their ticks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from shardwise.errors import BadInput

LINEAR, LOG = SCALES = ("linear", "log")

WIDE = 20.0
"""Largest over smallest value from which on a picture is logarithmic unless a scale is named."""


def scale_for(scale: str | None, *axes: Iterable[float]) -> str:
    """Returns the scale of a picture whose axes show these values: `scale`, if there is one.

    Values of 0 and below have no logarithm and do not count. Raises `BadInput` for a scale that is
    not one of `SCALES`.
    """
    if scale is not None:
        if scale not in SCALES:
            raise BadInput(f"unknown scale {scale!r}", field="scale", expected=", ".join(SCALES))
        return scale
    shown = [[value for value in values if value > 0] for values in axes]
    return LOG if any(values and max(values) >= WIDE * min(values) for values in shown) else LINEAR


def set_scale(axes: Any, scale: str, *, counts: bool = False) -> None:
    """Sets both axes of a panel; a linear y axis begins at 0.

    Ticks of log axes are 1, 2, 5, 10, and powers of two where the x axis has `counts` of GPUs.
    """
    if scale == LINEAR:
        axes.set_ylim(bottom=0)
        return
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_xscale("log", base=2 if counts else 10)
    axes.set_yscale("log")
    for axis, two in ((axes.xaxis, counts), (axes.yaxis, False)):
        low, high = sorted(axis.get_view_interval())
        digits = (1.0,) if two or low <= 0 or high > 1000 * low else (1.0, 2.0, 5.0)
        axis.set_major_locator(LogLocator(base=2 if two else 10, subs=digits))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
