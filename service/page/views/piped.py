"""Points of answers whose fastest step is a pipeline's, as views show them."""

from __future__ import annotations

from typing import Any

from shardwise.documents.pipeline_point import groups_text
from shardwise.search.pipelines.searched import Searched


def piped(point: dict[str, Any], time: str) -> dict[str, Any]:
    """Returns a point with the figures of its faster step: where it has a pipeline those of that,
    with `piped`, which says so in words, and `label`. `time` is the member that ranks points."""
    pipeline = point.get("pipeline")
    if pipeline is None:
        return point
    # Of strategies without a pipeline, on several kinds of devices.
    shared = {name: value for name, value in point.items() if name not in ("places", "alone")}
    return {
        **shared,
        **figures(pipeline),
        "feasible": True,
        time: pipeline["step_s"],
        "piped": words(pipeline),
    }


def figures(pipeline: dict[str, Any]) -> dict[str, Any]:
    """Returns the figures of a pipeline by the names that points have for theirs."""
    return {
        "label": f"{_stages(pipeline)}, {pipeline['schedule']}",
        "micro_batches": pipeline["micro_batches"],
        "peak_bytes": pipeline["peak_bytes"],
        "samples_per_s": pipeline["samples_per_s"],
        "gap": None,
    }


def words(pipeline: dict[str, Any]) -> str:
    """Returns text such as `2 stages, 1f1b, 8 micro-batches`."""
    return f"{_stages(pipeline)}, {pipeline['schedule']}, {pipeline['micro_batches']} micro-batches"


def _stages(pipeline: dict[str, Any]) -> str:
    """Returns text such as `2 stages`, `8 stages on 4 ranks` or `4 stages (3 h100, 1 a100)`."""
    stages, each = pipeline["stages"], pipeline.get("stages_per_rank", 1)
    ranks = f" on {stages // each} ranks" if each > 1 else ""
    return f"{stages} stages{ranks}{groups_text(pipeline.get('groups', ()))}"


def questions(
    pipeline: dict[str, Any], options: dict[str, Any], limit_bytes: float | None
) -> dict[str, Any]:
    """Returns the members of a plan's request that ask for a pipeline again, within `limit_bytes`
    if that is not None."""
    each = pipeline.get("stages_per_rank", 1)
    again = {**options, "micro_batches": [pipeline["micro_batches"]]}
    if limit_bytes is not None:
        again["memory_limit_bytes"] = limit_bytes
    return {
        "options": again,
        "stages": [pipeline["stages"] // each],
        "schedules": [str(Searched(pipeline["schedule"], each))],
    }
