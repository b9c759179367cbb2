"""Ranks of one kind that measure the same calls of operators at the same time.

The first of them decides what is measured next and says so to the others; all start a call
together, and one that is done continues (unrecorded) until all are, as siblings do
(`operators/siblings.py`). They are the ranks of the job themselves, on whatever hosts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardwise.measure.operators.bench import Bench
from shardwise.measure.operators.clock import Timing, timing
from shardwise.measure.operators.effort import Effort
from shardwise.measure.operators.measuring import Measured, measure_with
from shardwise.measure.operators.needed import OperatorItem
from shardwise.measure.rank import Rank


class _Peers:
    """The ranks of one kind, as `bench.Peers`."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._all_done: Any = None

    def ready(self) -> None:
        self._rank.torch.distributed.barrier(group=self._rank.control)

    def done(self) -> None:
        one = self._rank.torch.ones(1)
        distributed = self._rank.torch.distributed
        self._all_done = distributed.all_reduce(one, group=self._rank.control, async_op=True)

    def busy(self) -> bool:
        if not self._all_done.is_completed():
            return True
        self._all_done.wait()
        return False


class Together:
    """The ranks of one kind; `first` is the number of the one that decides."""

    def __init__(self, rank: Rank, effort: Effort, first: int) -> None:
        self.threads = rank.torch.get_num_threads()
        self._rank, self._first = rank, first
        self._bench = Bench(rank.torch, effort, rank.crowd)
        self._peers = _Peers(rank)

    def measure(self, item: OperatorItem, budget_s: float) -> Timing | str:
        """Returns the timing of one item over all ranks, or the reason why there is none."""
        self._said((item, budget_s))
        return self._timed(item, budget_s)

    def follow(self) -> None:
        """Measures what the first rank says, until it says that it is done."""
        while (asked := self._said(None)) is not None:
            self._timed(*asked)

    def end(self) -> None:
        """Tells the other ranks that all is measured."""
        self._said(None)

    def _said(self, what: Any) -> Any:
        box = [what]
        distributed = self._rank.torch.distributed
        distributed.broadcast_object_list(box, self._first, group=self._rank.control)
        return box[0]

    def _timed(self, item: OperatorItem, budget_s: float) -> Timing | str:
        outcomes = self._rank.gather(self._bench.times(item, budget_s, self._peers))
        reasons = [outcome for outcome in outcomes if isinstance(outcome, str)]
        if reasons:
            return str(reasons[0])
        return timing([time for outcome in outcomes for time in outcome])


def measure_together(
    rank: Rank, first: int, items: Sequence[OperatorItem], effort: Effort
) -> Measured | None:
    """Measures calls on all ranks of a kind; returns what was measured on the rank `first`.

    Collective among the ranks of `rank.control`.
    """
    together = Together(rank, effort, first)
    if rank.world.rank != first:
        together.follow()
        return None
    try:
        return measure_with(together, items, effort, threads=together.threads)
    finally:
        together.end()
