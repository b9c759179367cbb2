"""What was predicted beside what was measured, quantity by quantity."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

QUANTITIES = ("iteration", "compute", "communication", "peak")
NAMES = {
    "iteration": "Iteration",
    "compute": "Compute",
    "communication": "Communication",
    "peak": "Peak memory of a GPU",
}
PREDICTED = {
    "iteration": "replayed_time_s",
    "compute": "compute_s",
    "communication": "communication_s",
    "peak": "peak_bytes",
}
"""Which member of a plan's `predicted` each error is taken against (docs/replay.md)."""


def compared(run: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a run of a launch as its page shows it.

    Errors are those that were reported. A measurement comes from an agent: of its members the
    service has checked those in `service/cluster/measurements.py` alone.
    """
    found = run["measurement"]
    predicted = found["predicted"]
    iteration, peak = found["iteration_s"], found.get("peak_bytes")
    measured = {
        "iteration": iteration["median"],
        "compute": found.get("compute_s"),
        "communication": found.get("communication_s"),
        "peak": _number(peak.get("max")) if isinstance(peak, Mapping) else None,
    }
    return {
        **run,
        "steps": found.get("steps", 0),
        "gpus": found.get("gpus", 1),
        "backend": found["backend"] if isinstance(found.get("backend"), str) else "",
        "spread": [_number(iteration.get(name)) for name in ("p10", "p90")],
        "rows": [
            {
                "name": NAMES[quantity],
                "unit": "size" if quantity == "peak" else "seconds",
                "predicted": _number(predicted.get(PREDICTED[quantity])),
                "measured": measured[quantity],
                "error": run["errors"][quantity],
            }
            for quantity in QUANTITIES
        ],
    }


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        return None
    return float(value)
