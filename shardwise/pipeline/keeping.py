"""A rank's memory while it runs its list, action by action: one count for all schedules.

A rank does one thing at a time, so this follows from its list alone, whatever the times are:

- A micro-batch is kept, with what came in for it, from the start of its forward to the end of its
  backward. Where backward is split it is kept until I, that of the inputs, has ended; what its W,
  that of the weights, needs waits until that has ended. A whole backward of such a schedule is run
  as an I and a W right after it.
- A rank asks for a tensor an action before it needs it (`lists.py`), and has memory for it from
  then on; for a gradient until the backward that reads it has run. Between two stages on one rank a
  tensor is there from the action that makes it to the one that reads it.
- What was sent is held until something that the other rank sent later has come, and no action less
  than two before: the rule of `execute/pipeline/hops.py`.
- The gradients of a stage's parameters are there from its first backward on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwise.pipeline.actions import Action, Kind, Schedule
from shardwise.pipeline.lists import Item, Transfer, lists_of
from shardwise.pipeline.schedules import SCHEDULES, schedule

FORWARD, BACKWARD, WEIGHTS = range(3)
"""The parts of a micro-batch that run; `BACKWARD` is I where backward is split."""

FIRST, BETWEEN, LAST = range(3)
"""Which of a stage's passes runs: a forward is the first while there are no gradients of weights,
an I while no W has run; later forwards are between."""

Counts = NDArray[np.int64]


class Moments(NamedTuple):
    """The memory of a rank of v stages while its actions run, one row per action or half of a whole
    backward that is split.

    `action` (M,) is the position in the rank's list, `place` (M,) the rank's stage that runs,
    `part` (M,) the part of a micro-batch and `turn` (M,) the pass, by the numbers above.

    Per stage (M, v): micro-batches that are kept and that wait for W, including the running one;
    tensors or gradients in transfer over the cut before the stage and behind it; and whether the
    gradients of backward (I if it is split) and of W exist, apart from those that come and go in a
    pass of this part and turn.
    """

    action: Counts
    place: Counts
    part: Counts
    turn: Counts
    kept: Counts
    waiting: Counts
    before: Counts
    behind: Counts
    gradients: Counts
    weights_gradients: Counts

    def distinct(self) -> Moments:
        """Returns the moments that differ in more than the action, in order of first occurrence."""
        columns = [self.place, self.part, self.turn]
        table = np.concatenate([np.stack(columns, axis=1), *self[4:]], axis=1)
        _, first = np.unique(table, axis=0, return_index=True)
        first.sort()
        return Moments(*(of[first] for of in self))


@dataclass(frozen=True)
class Keeping:
    """A schedule, and the memory of each of its ranks."""

    order: Schedule
    splits: bool

    @cached_property
    def moments(self) -> tuple[Moments, ...]:
        """The moments of each rank's list."""
        every = [True] * (self.order.stages - 1)
        lists = lists_of(self.order, every, every)
        placement = self.order.placement
        return tuple(
            moments(items, placement.stages_of(rank), self.order.micro_batches, splits=self.splits)
            for rank, items in enumerate(lists)
        )

    @cached_property
    def distinct(self) -> tuple[Moments, ...]:
        """The distinct moments of each rank."""
        return tuple(of_rank.distinct() for of_rank in self.moments)


@lru_cache(maxsize=256)
def keeping(name: str, ranks: int, micro_batches: int, stages_per_rank: int) -> Keeping:
    """Returns a schedule by name with the memory of its ranks.

    Raises `BadInput` as `schedule`.
    """
    made = schedule(name, ranks=ranks, micro_batches=micro_batches, stages_per_rank=stages_per_rank)
    return Keeping(made, SCHEDULES[name].splits)


def moments(
    items: Sequence[Item], stages: tuple[int, ...], micro_batches: int, *, splits: bool
) -> Moments:
    """Returns the moments of a rank's list; each of its `stages` runs `micro_batches`
    micro-batches."""
    rank, rows, number = _Rank(stages, micro_batches, splits), list[list[int]](), 0
    for item in items:
        if isinstance(item, Transfer):
            rank.transfer(item)
            continue
        rows += [[number, *row] for row in rank.run(item)]
        number += 1
    table, each = np.array(rows, dtype=np.int64), len(stages)
    of = [table[:, 4 + each * n : 4 + each * (n + 1)] for n in range(6)]
    return Moments(*table[:, :4].T, *of)


class _Sent(NamedTuple):
    """A tensor or gradient possibly in transfer, sent after the first `actions` actions."""

    transfer: Transfer
    actions: int


class _Rank:
    """A rank's memory by stage while it runs its list."""

    def __init__(self, stages: tuple[int, ...], micro_batches: int, splits: bool) -> None:
        self._place = {stage: number for number, stage in enumerate(stages)}
        self._micro_batches, self._splits = micro_batches, splits
        self._kept, self._waiting, self._before, self._behind = ([0] * len(stages) for _ in "kwbb")
        self._backwards, self._weights = [0] * len(stages), [0] * len(stages)
        self._asked: dict[tuple[int, bool, int], Transfer] = {}
        self._sent: dict[tuple[int, int], deque[_Sent]] = {}
        self._actions = 0

    def transfer(self, transfer: Transfer) -> None:
        """Records a tensor or gradient that is sent or requested."""
        if transfer.target in self._place:
            self._asked[transfer.target, transfer.is_forward, transfer.micro_batch] = transfer
            self._count(transfer, transfer.target, 1)
        else:
            sent = self._sent.setdefault(transfer.ranks, deque())
            sent.append(_Sent(transfer, self._actions))
            self._count(transfer, transfer.source, 1)

    def _count(self, transfer: Transfer, stage: int, change: int) -> None:
        over = self._behind if transfer.cut == stage else self._before
        over[self._place[stage]] += change

    def run(self, action: Action) -> Iterator[list[int]]:
        """Yields place, part and turn of an action's parts, and the memory meanwhile."""
        here = self._place[action.stage]
        if action.kind is Kind.FORWARD:
            yield from self._forward(action, here)
        if action.kind in (Kind.INPUTS, Kind.BACKWARD):
            yield from self._backward(action, here)
        if action.kind is Kind.WEIGHTS or (action.kind is Kind.BACKWARD and self._splits):
            ran = self._weights[here]
            yield self._row(here, WEIGHTS, self._turn(ran))
            self._weights[here] += 1
            self._waiting[here] -= 1

    def _forward(self, action: Action, here: int) -> Iterator[list[int]]:
        self._get(action, forward=True)
        self._before[here] -= action.stage > 0
        self._kept[here] += 1
        yield self._row(here, FORWARD, FIRST if not self._summed(here) else BETWEEN)
        behind = self._place.get(action.stage + 1)
        if behind is not None:
            self._before[behind] += 1

    def _backward(self, action: Action, here: int) -> Iterator[list[int]]:
        came = self._get(action, forward=False)
        turn = self._turn(self._backwards[here])
        yield self._row(here, BACKWARD, turn if self._summed(here) else FIRST)
        self._backwards[here] += 1
        self._kept[here] -= 1
        self._waiting[here] += self._splits
        self._behind[here] -= came or action.stage + 1 in self._place
        before = self._place.get(action.stage - 1)
        if before is not None:
            self._behind[before] += 1

    def _summed(self, place: int) -> bool:
        """Returns whether all gradients of a stage's parameters exist."""
        return (self._weights if self._splits else self._backwards)[place] > 0

    def _turn(self, ran: int) -> int:
        if ran == 0:
            return FIRST
        return LAST if ran == self._micro_batches - 1 else BETWEEN

    def _get(self, action: Action, *, forward: bool) -> bool:
        """Takes an action's inputs, and releases what the other rank had requested before it sent
        them; returns whether another rank sent them."""
        self._actions += 1
        come = self._asked.pop((action.stage, forward, action.micro_batch), None)
        if come is None:
            return False
        sent = self._sent.get(come.ranks, deque())
        while (
            sent and sent[0].transfer.number < come.number and sent[0].actions < self._actions - 1
        ):
            gone = sent.popleft().transfer
            self._count(gone, gone.source, -1)
        return True

    def _row(self, here: int, part: int, turn: int) -> list[int]:
        begun = [int(ran > 0) for ran in self._backwards]
        weights = [int(ran > 0) for ran in self._weights]
        # The replayed pass has its stage's own: those of the first I where W has not run.
        begun[here] = int(begun[here] and turn == FIRST and part != WEIGHTS)
        weights[here] = 0
        held = (self._kept, self._waiting, self._before, self._behind, begun, weights)
        return [here, part, turn, *(count for of_stages in held for count in of_stages)]
