"""The names under which predicted and measured values are logged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardwise.documents import Plan
from shardwise.measure.trackers import Tracker

STEP_MEASURED = "shardwise/step_s/measured"
STEP_PREDICTED = "shardwise/step_s/predicted"
PEAK_MEASURED = "shardwise/peak_bytes/measured"
PEAK_PREDICTED = "shardwise/peak_bytes/predicted"
PLAN = "shardwise/plan"


def log_step(
    tracker: Tracker, plan: Plan, step: int, step_s: float, peak_bytes: float | None
) -> None:
    """Logs one step beside what the plan predicts; the peak where it was measured."""
    values = {STEP_MEASURED: step_s, STEP_PREDICTED: float(plan.replayed_s)}
    if peak_bytes is not None:
        values[PEAK_MEASURED] = float(peak_bytes)
    tracker.log({**values, PEAK_PREDICTED: float(plan.predicted.peak_bytes)}, step)


def log_measurement(tracker: Tracker, plan: Plan, document: Mapping[str, Any]) -> None:
    """Logs what `run` measured: the median step and the highest peak of all ranks."""
    tracker.note({PLAN: plan.id})
    log_step(
        tracker,
        plan,
        int(document["steps"]),
        float(document["iteration_s"]["median"]),
        float(document["peak_bytes"]["max"]),
    )
    tracker.close()
