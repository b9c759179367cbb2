"""What a rank holds while it runs a list with split backwards, action by action.

A micro-batch is kept from the start of its forward to the end of its I, backward of the inputs;
what its W needs, backward of the weights, waits from then until W has ended. A whole backward of
such a schedule is run as an I and a W right after it. Tensors and gradients are held while they are
on their way, as in `on_the_way.py`; those between two stages on one rank from the action that makes
them to the one that reads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwise.pipeline.actions import Action, Kind
from shardwise.pipeline.lists import Item, lists_of
from shardwise.pipeline.schedules import schedule

PARTS = (Kind.FORWARD, Kind.INPUTS, Kind.WEIGHTS)
"""The parts of a micro-batch that run, by the numbers that moments have for them."""

Counts = NDArray[np.int64]


class SplitMoments(NamedTuple):
    """What a rank of v stages holds while its actions run, one row an action or half of a whole
    backward: `action` (M,) its place in the rank's list, `place` (M,) which of the rank's stages
    runs, `part` (M,) which of `PARTS`.

    Of each stage (M, v): micro-batches that are kept and that wait for W, the one that runs among
    them, and single tensors or gradients on their way over the cut before the stage and behind it.
    """

    action: Counts
    place: Counts
    part: Counts
    kept: Counts
    waiting: Counts
    before: Counts
    behind: Counts


@lru_cache(maxsize=64)
def split_moments(
    name: str, ranks: int, micro_batches: int, stages_per_rank: int
) -> tuple[SplitMoments, ...]:
    """Returns the moments of each rank of a schedule, by its name.

    Raises `BadInput` as `schedule`.
    """
    made = schedule(name, ranks=ranks, micro_batches=micro_batches, stages_per_rank=stages_per_rank)
    every = [True] * (made.stages - 1)
    lists = lists_of(made, every, every)
    return tuple(
        _moments(items, made.placement.stages_of(rank)) for rank, items in enumerate(lists)
    )


class _Rank:
    """What a rank holds as it goes through its list, by stage."""

    def __init__(self, stages: Sequence[int]) -> None:
        self.stages = stages
        self._place = {stage: number for number, stage in enumerate(stages)}
        self.kept, self.waiting, self.before, self.behind = ([0] * len(stages) for _ in range(4))
        # Whether the stage has sent what may be on its way: forward, and back.
        self._sent = {True: [0] * len(stages), False: [0] * len(stages)}

    def transfer(self, item: Item) -> None:
        """Notes a tensor or gradient that is sent or asked for."""
        transfer = item.transfer
        assert transfer is not None
        if transfer.source in self._place:
            self._sent[transfer.is_forward][self._place[transfer.source]] = 1
        elif transfer.is_forward:
            self.before[self._place[transfer.target]] += 1
        else:
            self.behind[self._place[transfer.target]] += 1

    def run(self, action: Action) -> Iterator[tuple[int, int, list[int]]]:
        """Yields place and part of what runs for an action, and what is held meanwhile."""
        here = self._place[action.stage]
        if action.kind is Kind.FORWARD:
            self.kept[here] += 1
            self.before[here] = max(self.before[here] - 1, 0)
            yield here, 0, self._held()
            self._sent[True][here] = 0
            behind = self._place.get(action.stage + 1)
            if behind is not None:
                self.before[behind] += 1
        if action.kind in (Kind.INPUTS, Kind.BACKWARD):
            yield here, 1, self._held()
            self.kept[here] -= 1
            self.waiting[here] += 1
            self.behind[here] = max(self.behind[here] - 1, 0)
            self._sent[True][here] = self._sent[False][here] = 0
            before = self._place.get(action.stage - 1)
            if before is not None:
                self.behind[before] += 1
        if action.kind in (Kind.WEIGHTS, Kind.BACKWARD):
            yield here, 2, self._held()
            self.waiting[here] -= 1

    def _held(self) -> list[int]:
        before = [n + sent for n, sent in zip(self.before, self._sent[False], strict=True)]
        behind = [n + sent for n, sent in zip(self.behind, self._sent[True], strict=True)]
        return [*self.kept, *self.waiting, *before, *behind]


def _moments(items: Sequence[Item], stages: Sequence[int]) -> SplitMoments:
    rank, rows, number = _Rank(stages), list[list[int]](), 0
    for item in items:
        if item.action is None:
            rank.transfer(item)
            continue
        rows += [[number, place, part, *held] for place, part, held in rank.run(item.action)]
        number += 1
    table, each = np.array(rows, dtype=np.int64), len(stages)
    of = [table[:, 3 + each * n : 3 + each * (n + 1)] for n in range(4)]
    return SplitMoments(table[:, 0], table[:, 1], table[:, 2], *of)
