"""Schedules that run ahead by some forwards and then alternate forward and backward."""

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

    Forwards that `warm_up` exceeds are left out; backwards that are left come at the end. With
    `weights_late_by` backwards are split, and that of the weights comes that many backwards of the
    inputs later. Chunks are taken in rounds: of a round's micro-batches all forwards of the first
    chunk, of the second, …, and backwards from the last chunk to the first.
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
    """Returns the order in which a rank takes the micro-batches of its chunks."""
    size = round_of(ranks, micro_batches) if len(chunks) > 1 else micro_batches
    return [
        (stage, micro_batch)
        for first in range(0, micro_batches, size)
        for stage in chunks
        for micro_batch in range(first, first + size)
    ]


def round_of(ranks: int, micro_batches: int) -> int:
    """Returns how many micro-batches each chunk takes before the next chunk begins.

    Rounds have as few micro-batches as they may, but at least one for each rank; fewer of them
    than ranks are one round.
    """
    return micro_batches // max(1, micro_batches // ranks)
