"""Predicted against measured values, quantity by quantity."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

from shardwise.measure.measurement import predicted_values

QUANTITIES = ("iteration", "compute", "communication", "peak")
NAMES = {
    "iteration": "Iteration",
    "compute": "Compute",
    "communication": "Communication",
    "peak": "Peak memory of a GPU",
}


def compared(run: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a run of a launch as its page shows it.

    Errors are the reported ones. A measurement comes from an agent: the service has checked only
    the members in `service/cluster/measurements.py`.
    """
    measurement = run["measurement"]
    predicted = predicted_values(measurement["predicted"])
    iteration, peak = measurement["iteration_s"], measurement.get("peak_bytes")
    measured = {
        "iteration": iteration["median"],
        "compute": measurement.get("compute_s"),
        "communication": measurement.get("communication_s"),
        "peak": _number(peak.get("max")) if isinstance(peak, Mapping) else None,
    }
    return {
        **run,
        "steps": measurement.get("steps", 0),
        "gpus": measurement.get("gpus", 1),
        "backend": measurement["backend"] if isinstance(measurement.get("backend"), str) else "",
        "spread": [_number(iteration.get(name)) for name in ("p10", "p90")],
        "rows": [
            {
                "name": NAMES[quantity],
                "unit": "size" if quantity == "peak" else "seconds",
                "predicted": _number(predicted[quantity]),
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
