"""When a strategy counts as computing what one device computes; needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

KINDS = ("loss", "gradient", "parameter", "buffer")
TOLERANCE = 1e-5
DOUBLE_TOLERANCE = 1e-11
"""Of a strategy that float64 decides: in float32 rounding crossed a kink (sweep.py)."""


def equal(result: Mapping[str, Any]) -> bool:
    """Returns whether a line of sweep.py says so: in float32, else in float64."""
    if "failed" in result:
        return False
    decided = result.get("float64")
    if decided is not None:
        return bool(decided <= DOUBLE_TOLERANCE)
    return max(float(result[kind]) for kind in KINDS) <= TOLERANCE
