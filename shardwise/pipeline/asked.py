"""The vocabulary of pipeline queries, common to the command line and HTTP."""

from __future__ import annotations

from collections.abc import Sequence

from shardwise.validation import whole_numbers

AUTO = "auto"
"""Every number of stages that the model and the devices allow, including none."""
DEFAULT_SCHEDULES = ("1f1b", "1f1b-eager")
NO_STAGES = (1,)
"""The numbers of stages of a query without pipelines."""
FASTEST = ("mini-time", "mini-cost")
"""Objectives that pick the fastest strategy that fits."""
OBJECTIVES = ("mini-time", "mini-memory", "turning-point", "mini-cost")
"""A plan's objectives: points of the frontier."""
ANY = "any"
"""The unrestricted space, with separate choices for every group of operators."""
WHOLE_BACKWARD = ("1f1b", "1f1b-eager", "gpipe")
"""The schedules with one stage per rank and whole backwards."""
PIPED_TRAINERS = ("megatron", "torchtitan")
"""The trainers whose pipelines are planned and priced."""


def asks_for_stages(stages: Sequence[int] | str | None) -> bool:
    """Returns whether a query's `stages`, `auto` or numbers, asks for pipelines; a missing one does
    not."""
    return stages is not None and (stages == AUTO or set(stages) != set(NO_STAGES))


def stages_from(text: str, field: str = "stages") -> list[int] | None:
    """Returns the numbers of stages that a text such as `2,4` names; None for `auto`.

    Raises `BadInput`.
    """
    if text == AUTO:
        return None
    return whole_numbers(
        text, field, "numbers of stages", "numbers from 1 on, such as 2,4, or auto"
    )
