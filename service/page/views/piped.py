"""Points of answers whose fastest step is a pipeline's, as views show them."""

from __future__ import annotations

from typing import Any


def piped(point: dict[str, Any], time: str) -> dict[str, Any]:
    """Returns a point with the figures of its faster step: where it has a pipeline those of that,
    with `piped`, which says so in words, and `label`. `time` is the member that ranks points."""
    pipeline = point.get("pipeline")
    if pipeline is None:
        return point
    return {
        **point,
        **figures(pipeline),
        "feasible": True,
        time: pipeline["step_s"],
        "piped": words(pipeline),
    }


def figures(pipeline: dict[str, Any]) -> dict[str, Any]:
    """Returns the figures of a pipeline by the names that points have for theirs."""
    return {
        "label": f"{pipeline['stages']} stages, {pipeline['schedule']}",
        "micro_batches": pipeline["micro_batches"],
        "peak_bytes": pipeline["peak_bytes"],
        "samples_per_s": pipeline["samples_per_s"],
        "gap": None,
    }


def words(pipeline: dict[str, Any]) -> str:
    """Returns text such as `2 stages, 1f1b, 8 micro-batches`."""
    return "{stages} stages, {schedule}, {micro_batches} micro-batches".format(**pipeline)


def questions(
    pipeline: dict[str, Any], options: dict[str, Any], limit_bytes: float | None
) -> dict[str, Any]:
    """Returns the members of a plan's request that ask for a pipeline again, within `limit_bytes`
    if that is not None."""
    again = {**options, "micro_batches": [pipeline["micro_batches"]]}
    if limit_bytes is not None:
        again["memory_limit_bytes"] = limit_bytes
    return {
        "options": again,
        "stages": [pipeline["stages"]],
        "schedules": [pipeline["schedule"]],
    }
