"""The picture of a plan's step."""

from __future__ import annotations

from shardwise.documents import Plan, by_form
from shardwise.pictures.bars import plan_picture
from shardwise.pictures.figure import Picture
from shardwise.pictures.pipeline import pipeline_picture


def step_picture(plan: Plan) -> Picture:
    """Returns what runs when, and what takes longest or, of several stages, what ranks hold.

    Raises `BadInput` for stages of an earlier version, which has no step over time.
    """
    return by_form(plan, plan_picture, pipeline_picture)
