"""What a rank keeps while it runs its list: micro-batches of each of its stages, action by action.

A micro-batch is kept from the start of its forward to the end of its backward. A rank does one
thing at a time, so this follows from its list alone, whatever the times are.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from shardwise.pipeline.actions import Action, Kind, Schedule
from shardwise.pipeline.schedules import schedule

Moments = NDArray[np.int64]
"""Of a rank with v stages, a row for each kind of moment, (moments, 1 + v): which of its stages
runs, 0 to v - 1, and how many micro-batches each keeps meanwhile, the one that runs included."""


def moments(actions: tuple[Action, ...], stages: tuple[int, ...]) -> Moments:
    """Returns the different moments of a rank's list; `stages` are its stages.

    With a split backward a micro-batch is kept until that of its inputs has ended, and what waits
    for that of its weights is left out (`split_keeping.py`).
    """
    place = {stage: number for number, stage in enumerate(stages)}
    kept = [0] * len(stages)
    known: dict[tuple[int, ...], None] = {}
    for action in actions:
        if action.kind is Kind.WEIGHTS:
            continue
        stage = place[action.stage]
        kept[stage] += action.kind is Kind.FORWARD
        known[stage, *kept] = None
        kept[stage] -= action.kind is not Kind.FORWARD
    return np.array(list(known), dtype=np.int64)


@lru_cache(maxsize=64)
def moments_of(
    name: str, ranks: int, micro_batches: int, stages_per_rank: int
) -> tuple[Schedule, tuple[Moments, ...]]:
    """Returns a schedule by name and the moments of each of its ranks.

    Raises `BadInput` as `schedule`.
    """
    made = schedule(name, ranks=ranks, micro_batches=micro_batches, stages_per_rank=stages_per_rank)
    of_rank = enumerate(made.ranks)
    return made, tuple(moments(actions, made.placement.stages_of(r)) for r, actions in of_rank)
