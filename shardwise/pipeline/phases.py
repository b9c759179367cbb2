"""V schedules: a rank has an early and a late stage, and repeats patterns in phases.

A pattern is written in words: `F0` is the next forward of the rank's early stage, `B1` the next
whole backward of its late one, `I` and `W` those of inputs and weights; `F0+B1` run at the same
time. `W` alone is the backward of the weights that has waited longest.
"""

from __future__ import annotations

from collections import Counter, deque

from shardwise.pipeline.actions import Action, Kind
from shardwise.pipeline.placement import Placement


class _Phases:
    """A rank's list while it is written: each stage's next micro-batch, and waiting weights."""

    def __init__(self, stages: tuple[int, ...]) -> None:
        self.actions: list[Action] = []
        self._stages = stages
        self._next: Counter[tuple[Kind, int]] = Counter()
        self._waiting: deque[tuple[int, int]] = deque()

    def repeat(self, times: int, pattern: str) -> None:
        """Appends a pattern, repeated."""
        for _ in range(times):
            for slot in pattern.split():
                for position, word in enumerate(slot.split("+")):
                    self._append(Kind(word[0]), word[1:], with_previous=position > 0)

    def _append(self, kind: Kind, chunk: str, *, with_previous: bool) -> None:
        if kind is Kind.WEIGHTS:
            stage, micro_batch = self._take(int(chunk) if chunk else None)
        else:
            stage = self._stages[int(chunk)]
            # Whole backwards and those of inputs are one row of micro-batches.
            row = (Kind.FORWARD if kind is Kind.FORWARD else Kind.BACKWARD, stage)
            micro_batch = self._next[row]
            self._next[row] += 1
        if kind is Kind.INPUTS:
            self._waiting.append((stage, micro_batch))
        self.actions.append(Action(kind, stage, micro_batch, with_previous))

    def _take(self, chunk: int | None) -> tuple[int, int]:
        """Removes and returns the weights that have waited longest, of a chunk or of all."""
        stages = self._stages if chunk is None else (self._stages[chunk],)
        due = next(turn for turn in self._waiting if turn[0] in stages)
        self._waiting.remove(due)
        return due


def zero_bubble_v(placement: Placement, micro_batches: int, rank: int) -> list[Action]:
    """ZB-V (Qi et al. 2024, Zero Bubble Pipeline Parallelism, §6).

    It keeps as much as 1F1B and has no bubble between a rank's first and last action if forward,
    backward of inputs and backward of weights take equally long. The pattern needs 2p - 1
    micro-batches; with fewer, it is written for 2p - 1, and those that do not exist are left out.
    """
    behind, written = placement.ranks - rank, max(2 * placement.ranks - 1, micro_batches)
    phases = _Phases(placement.stages_of(rank))
    phases.repeat(2 * behind - 1, "F0")
    phases.repeat(rank, "F1 F0")
    phases.repeat(behind, "F1 I1 W1")
    phases.repeat(written - 2 * behind + 1 - rank, "F0 I0 W0 F1 I1 W1")
    phases.repeat(behind - 1, "I0 W0 F1 I1 W1")
    phases.repeat(rank, "I0 I1")
    phases.repeat(behind, "I0 W0")
    phases.repeat(rank, "W1")
    phases.repeat(rank, "W0")
    return [action for action in phases.actions if action.micro_batch < micro_batches]


def dual_pipe_v(placement: Placement, micro_batches: int, rank: int) -> list[Action]:
    """DualPipeV: DualPipe (DeepSeek-V3 technical report, §3.2.1) folded into a V.

    Halving DualPipe's two directions gives each rank one copy of two stages instead of two copies
    (the repository deepseek-ai/DualPipe). In its main phase a forward of one stage runs beside a
    backward of the other; towards the end backwards are split.
    """
    ranks = placement.ranks
    behind = ranks - 1 - rank
    phases = _Phases(placement.stages_of(rank))
    phases.repeat(2 * behind, "F0")
    phases.repeat(rank + 1, "F0 F1")
    phases.repeat(behind, "I1 W F1")
    main = micro_batches - ranks - behind
    if behind == 0:
        # On the last rank the first pair does not overlap, so the second stage's gradient is there
        # sooner.
        phases.repeat(1, "F0 B1 F1+B0")
        main -= 1
    phases.repeat(main, "F0+B1 F1+B0")
    phases.repeat(behind, "B1 F1+B0")
    # Of 2 (rank + 1) backwards, the second half is split.
    whole, odd = divmod(rank + 1, 2)
    phases.repeat(whole, "B1 B0")
    phases.repeat(odd, "B1 I0")
    phases.repeat(whole, "I1 I0")
    phases.repeat(behind, "W I0")
    phases.repeat(rank + 1, "W")
    return phases.actions
