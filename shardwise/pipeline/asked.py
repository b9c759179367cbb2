"""What a question about pipelines may ask, in the same words on a command line and over HTTP."""

from __future__ import annotations

from collections.abc import Sequence

from shardwise.validation import whole_numbers

AUTO = "auto"
"""Every number of stages that the model and the devices allow, and none."""
DEFAULT_SCHEDULES = ("1f1b", "1f1b-eager")
NO_STAGES = (1,)
"""The numbers of stages of a question that is not about pipelines."""
FASTEST = ("mini-time", "mini-cost")
"""Objectives that pick the fastest strategy that fits."""
OBJECTIVES = ("mini-time", "mini-memory", "turning-point", "mini-cost")
"""What a plan may be asked for: points of the frontier."""
ANY = "any"
"""The space of all strategies, one of its own for every group of operators."""
WHOLE_BACKWARD = ("1f1b", "1f1b-eager", "gpipe")
"""The schedules of one stage on each rank, each with a whole backward."""
PIPED_TRAINERS = ("megatron", "torchtitan")
"""The trainers whose pipelines are planned and priced."""


def asks_for_stages(stages: Sequence[int] | str | None) -> bool:
    """Returns whether a question's member, `auto` or numbers, asks about pipelines; an absent one
    does not."""
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
