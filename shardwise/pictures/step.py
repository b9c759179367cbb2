"""The picture of a plan's or a pipeline's step."""

from __future__ import annotations

from shardwise.answers.explain import explain
from shardwise.documents import Pipeline, Plan
from shardwise.pictures.bars import plan_picture
from shardwise.pictures.figure import Picture
from shardwise.pictures.pipeline import pipeline_picture


def step_picture(plan: Plan | Pipeline) -> Picture:
    """Returns what runs when, and what takes longest or, of a pipeline, what ranks hold.

    Raises `BadInput` for a pipeline of an earlier version, which has no step over time.
    """
    if isinstance(plan, Pipeline):
        return pipeline_picture(plan)
    return plan_picture(plan, explain(plan))
