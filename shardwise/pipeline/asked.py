"""What a question about pipelines may ask, in the same words on a command line and over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shardwise.errors import BadInput
from shardwise.validation import whole_numbers

AUTO = "auto"
"""Every number of stages that the model and the devices allow, and none."""
DEFAULT_SCHEDULES = ("1f1b", "1f1b-eager")
NO_STAGES = (1,)
"""The numbers of stages of a question that is not about pipelines."""
FASTEST = ("mini-time", "mini-cost")
"""Objectives that pipelines are searched for."""


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


def check_asked(
    *,
    objective: str,
    space: str,
    order: str | None = None,
    point: str | None = None,
    called: Callable[[str], str] = str,
) -> None:
    """Raises `BadInput` for questions that are not asked about pipelines; `called` is how a member
    is named."""
    stages = called("stages")
    for name, given, allowed in (
        ("order", order is not None, f"no {called('order')} with {stages}"),
        ("space", space != "any", f"any with {stages}"),
        ("objective", objective not in FASTEST, f"mini-time with {stages}"),
    ):
        if given:
            raise BadInput(
                "pipelines are not searched for this", field=called(name), expected=allowed
            )
    if point is not None:
        raise BadInput("pipelines have no frontier", field=called("point"), expected=f"no {stages}")
