"""Schedules with a warm-up of forwards, after which forward and backward alternate."""

from __future__ import annotations

from shardwise.pipeline.actions import Action, Kind
from shardwise.pipeline.placement import Placement

_Turn = tuple[int, int]
"""A stage and a micro-batch."""


def steady(
    placement: Placement,
    micro_batches: int,
    rank: int,
    warm_up: int,
    weights_late_by: int | None = None,
) -> list[Action]:
    """Returns a rank's list: `warm_up` forwards, then one forward and one backward in turn.

    Forwards beyond the last are left out; remaining backwards come at the end. With
    `weights_late_by`, backwards are split, and that of the weights follows that many backwards of
    the inputs later. Chunks run in rounds: all forwards of a round's micro-batches for the first
    chunk, then for the second, …, and backwards from the last chunk to the first.
    """
    chunks = placement.stages_of(rank)
    forwards = _in_rounds(chunks, placement.ranks, micro_batches)
    backwards = _in_rounds(chunks[::-1], placement.ranks, micro_batches)
    actions = [Action(Kind.FORWARD, *turn) for turn in forwards[:warm_up]]
    for position, turn in enumerate(backwards):
        if warm_up + position < len(forwards):
            actions.append(Action(Kind.FORWARD, *forwards[warm_up + position]))
        if weights_late_by is None:
            actions.append(Action(Kind.BACKWARD, *turn))
            continue
        actions.append(Action(Kind.INPUTS, *turn))
        if position >= weights_late_by:
            actions.append(Action(Kind.WEIGHTS, *backwards[position - weights_late_by]))
    if weights_late_by:
        actions += [Action(Kind.WEIGHTS, *turn) for turn in backwards[-weights_late_by:]]
    return actions


def _in_rounds(chunks: tuple[int, ...], ranks: int, micro_batches: int) -> list[_Turn]:
    """Returns a rank's order of its chunks' micro-batches."""
    size = round_of(ranks, micro_batches) if len(chunks) > 1 else micro_batches
    return [
        (stage, micro_batch)
        for first in range(0, micro_batches, size)
        for stage in chunks
        for micro_batch in range(first, first + size)
    ]


def round_of(ranks: int, micro_batches: int) -> int:
    """Returns the number of micro-batches per chunk in a round.

    Rounds are as small as possible, but have at least one micro-batch per rank; fewer micro-batches
    than ranks are one round.
    """
    return micro_batches // max(1, micro_batches // ranks)
