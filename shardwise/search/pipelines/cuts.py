"""Where to cut: the programme over the stages of a pipeline of unequal stages.

For stages of t_s seconds a micro-batch and hops of x_s, a step of A micro-batches takes about

    T = Σ t_s + 2 Σ x_s + (A - 1) max t_s

which is exact for GPipe and equal stages, and ranks cuts for the others (docs/pipelines.md). For a
limit on max t_s the least sum is found stage by stage from the end (Bellman); the limit is then
lowered below the longest stage of each answer, until no better T is possible. The best T over all
limits is the best over all cuts.

Stages are asked for only when they are in an answer: until then one counts as what it computes at
least or, once others of its place are known, as `NEAR` times what its computation takes at their
best rate. Answers of known stages alone count. What holds a stage that does not fit does not fit
either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf

import numpy as np
from numpy.typing import NDArray

from shardwise.sharding.layout import Floats

NEAR = 0.995
"""What a stage that is not known counts, of the time that its computation lets one expect."""

StageTime = Callable[[int, int, int], float]
"""Returns the seconds of a micro-batch of stage s (counted from 0), of units i to j - 1; infinite
where it does not fit."""


@dataclass(frozen=True)
class Cuts:
    """Where a model is cut: stage s has the units from `bounds[s]` to `bounds[s + 1]` - 1.

    `step_s` is T of the formula above.
    """

    bounds: tuple[int, ...]
    step_s: float


def windows(weights: Sequence[float], stages: int, slack: float) -> list[range]:
    """Returns for each stage the cuts at which it may end.

    A stage's units weigh at most 1 + `slack` times an even share, or are one unit; `weights` are
    bounds on what each unit computes.
    """
    units = len(weights)
    before = np.concatenate([[0.0], np.cumsum(weights)])
    share = before[-1] / stages
    ends = []
    for stage in range(1, stages + 1):
        least, most = stage, units - (stages - stage)
        # What is before a cut is at most that of `stage` full stages, and so is what is behind.
        first = int(np.searchsorted(before, before[-1] - (stages - stage) * share * (1 + slack)))
        last = int(np.searchsorted(before, stage * share * (1 + slack), side="right")) - 1
        first, last = max(least, min(first, most)), min(most, max(last, least))
        ends.append(range(min(first, last), max(first, last) + 1))
    ends[-1] = range(units, units + 1)
    return ends


def best_cuts(
    stage_s: StageTime,
    hops_s: Sequence[float],
    ends: Sequence[range],
    weights: Sequence[float],
    micro_batches: int,
    slack: float,
    most: int = 1,
) -> list[Cuts]:
    """Returns the best cuts, best first, at most `most`, with different longest stages.

    `hops_s[c]` are the seconds of a hop over the cut before unit c.
    """
    table = _StageTimes(stage_s, ends, weights, slack)
    limit, best = inf, list[Cuts]()
    while True:
        bounds = table.least_sum(hops_s, limit)
        if bounds is None:
            return sorted(best, key=lambda cuts: cuts.step_s)[:most]
        if not table.know(bounds):
            continue
        times = [table.at(s, *bounds[s : s + 2]) for s in range(len(ends))]
        through_s = sum(times) + 2 * sum(hops_s[c] for c in bounds[1:-1])
        longest = max(times)
        best.append(Cuts(bounds, through_s + (micro_batches - 1) * longest))
        reached = sorted(cuts.step_s for cuts in best)[:most][-1]
        if len(best) >= most and through_s + (micro_batches - 1) * table.least_longest() >= reached:
            return sorted(best, key=lambda cuts: cuts.step_s)[:most]
        limit = longest


class _StageTimes:
    """The times of all stages that the windows allow, as far as they are known."""

    def __init__(
        self, stage_s: StageTime, ends: Sequence[range], weights: Sequence[float], slack: float
    ) -> None:
        before = np.concatenate([[0.0], np.cumsum(weights)])
        share = before[-1] / len(ends) * (1 + slack)
        self._stage_s = stage_s
        self._begins = [range(1), *ends[:-1]]
        self._ends = ends
        self._times: list[Floats] = []
        self._weights: list[Floats] = []
        self._known: list[NDArray[np.bool_]] = []
        for begins, stops in zip(self._begins, ends, strict=True):
            first, last = np.array(begins)[:, None], np.array(stops)[None, :]
            weight = before[last] - before[first]
            allowed = (first < last) & ((weight <= share) | (last == first + 1))
            self._times.append(np.where(allowed, weight, inf))
            self._weights.append(weight)
            self._known.append(~allowed)

    def know(self, bounds: Sequence[int]) -> bool:
        """Asks for the stages between these cuts; returns whether all of them were known."""
        all_known = True
        for stage, (begin, end) in enumerate(pairwise(bounds)):
            at = begin - self._begins[stage].start, end - self._ends[stage].start
            if not self._known[stage][at]:
                all_known = False
                seconds = self._stage_s(stage, begin, end)
                self._times[stage][at] = seconds
                self._known[stage][at] = True
                if seconds == inf:
                    self._refuse(stage, *at)
                self._expect(stage)
        return all_known

    def _refuse(self, stage: int, row: int, column: int) -> None:
        """Leaves out the stages that hold one that does not fit: they need no less memory."""
        for values, value in ((self._times[stage], inf), (self._known[stage], True)):
            values[: row + 1, column:] = value

    def _expect(self, stage: int) -> None:
        """Raises what unknown stages of a place count to what the known ones let one expect."""
        times, weight, known = self._times[stage], self._weights[stage], self._known[stage]
        told = known & np.isfinite(times) & (weight > 0)
        if told.any():
            rate = NEAR * float((times[told] / weight[told]).min())
            times[~known] = np.maximum(times[~known], rate * weight[~known])

    def at(self, stage: int, begin: int, end: int) -> float:
        """Returns the seconds of a stage."""
        row, column = begin - self._begins[stage].start, end - self._ends[stage].start
        return float(self._times[stage][row, column])

    def least_longest(self) -> float:
        """Returns how long the longest stage is at least, wherever the cuts are."""
        rest = np.zeros(1)
        for times in reversed(self._times):
            rest = np.maximum(times, rest[None, :]).min(axis=1)
        return float(rest[0])

    def least_sum(self, hops_s: Sequence[float], limit_s: float) -> tuple[int, ...] | None:
        """Returns the bounds of the stages whose times and hops add up to the least, each stage
        shorter than a limit; None where there are none."""
        rest = np.zeros(1)
        chosen: list[NDArray[np.intp]] = []
        for stage in range(len(self._ends) - 1, -1, -1):
            times = self._times[stage]
            total = np.where(times < limit_s, times, inf) + rest[None, :]
            chosen.append(total.argmin(axis=1))
            rest = total.min(axis=1)
            if stage:
                rest = rest + 2 * np.array([hops_s[c] for c in self._begins[stage]])
        if not np.isfinite(rest[0]):
            return None
        bounds, row = [0], 0
        for stage, picks in enumerate(reversed(chosen)):
            end = self._ends[stage].start + int(picks[row])
            bounds.append(end)
            row = end - self._ends[stage].start
        return tuple(bounds)
