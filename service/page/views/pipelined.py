"""A pipeline: its figures, its stages, its step over time, and what each stage does in words."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup
from msgspec import UNSET

from shardwise import documents
from shardwise.answers.explain import explain
from shardwise.documents.pipeline import shared_scope, units_text
from shardwise.pictures.pipeline import merged, pipeline_svg

MOST_ROWS = 60
"""Rows of the table of groups; the document has all."""


def pipeline_context(result: dict[str, Any]) -> dict[str, Any]:
    """Returns the rows of stages and groups, the chart, and the text."""
    pipeline = documents.read(result, documents.Pipeline)
    explained = explain(pipeline)
    outer = shared_scope(pipeline.stages)
    groups = [
        (number, one) for number, stage in enumerate(explained.stages) for one in stage.groups
    ]
    groups.sort(key=lambda row: -row[1].repeats * (row[1].compute_s + row[1].communication_s))
    drawn = pipeline.timeline is not UNSET
    single = pipeline.without_pipeline
    return {
        "units": [units_text(stage, outer) for stage in pipeline.stages],
        "text": explained.text,
        "busy_s": [stage.busy_s for stage in explained.stages],
        "slowest": explained.slowest_stage,
        "groups": groups[:MOST_ROWS],
        "all_groups": len(groups),
        "gantt": Markup(pipeline_svg(pipeline)) if drawn else None,
        "merged": pipeline.timeline is not UNSET and merged(pipeline.timeline),
        "shorter": 1.0 - pipeline.predicted.step_s / single.step_s if single else None,
    }
