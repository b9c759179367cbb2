"""Where to cut: the programme over the stages of a pipeline of unequal stages.

For stages of t_s seconds a micro-batch and hops of x_s, a step of A micro-batches takes about

    T = Σ t_s + 2 Σ x_s + max c_s t_s

with c_s = A - 1 for GPipe, and A - 1 less what a stage's window hides under 1F1B (`bounds.py`). It
is exact for GPipe and equal stages, and ranks cuts for the others (docs/pipeline-search.md). For a
limit on max c_s t_s the least sum is found (`programme.py`); the limit is then lowered below the
longest stage of each answer, until no better T is possible. The best T over all limits is the best
over all cuts.

Stages are solved only when they are in an answer. Until then a stage counts as its least
computation or, once others of the same position are known, as `NEAR` times its computation at their
best rate. Only answers of known stages count. A range that contains a stage that does not fit does
not fit either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, inf
from operator import mul

import numpy as np
from numpy.typing import NDArray

from shardwise.search.pipelines.bounds import ends_only, ranges_of
from shardwise.search.pipelines.programme import least_longest, least_sum
from shardwise.search.pipelines.searched import Run
from shardwise.sharding.layout import Floats

NEAR = 0.995
"""Time of an unknown stage, relative to the time expected from its computation."""

TINY = 1e-30
"""Seconds that count as zero."""

FORWARD_SHARE = 3.0
"""Assumed ratio of a micro-batch's passes to its forward when cuts are ranked."""

RUN = 3
"""Maximum number of cuts moved together."""

GAIN = 1e-3
"""Relative: the minimum gain of a move."""

FINE = 48
"""Maximum number of cuts of a stage's window tried at once."""

Weights = Sequence[float] | Floats
"""Weight of each unit, (U,), or (stages, U)."""

StageTime = Callable[[int, int, int], float]
"""Returns the seconds of a micro-batch in stage s (counted from 0) with units i to j - 1; infinite
if it does not fit."""

Alike = Callable[[int, NDArray[np.int64], NDArray[np.int64]], NDArray[np.int64]]
"""Returns a class number for each stage s of units i, (I, 1), to j - 1, (1, J), with i < j: equal
for stages that take equally long, (I, J)."""


@dataclass(frozen=True)
class Cuts:
    """The cuts of a model: stage s has the units from `bounds[s]` to `bounds[s + 1]` - 1.

    `step_s` is T of the formula above.
    """

    bounds: tuple[int, ...]
    step_s: float


def windows(weights: Weights, stages: int, slack: float) -> list[range]:
    """Returns the cuts at which each stage may end.

    A stage's units weigh at most 1 + `slack` times an even share, or are one unit; `weights` are
    bounds on each unit's computation, (U,), or (stages, U) if that depends on the stage.
    """
    units = np.shape(weights)[-1]
    befores = _before(weights, stages)
    share, ends = _even_share(befores), []
    for stage, before in enumerate(befores, 1):
        least, most = stage, units - (stages - stage)
        # Before a cut are at most `stage` full stages, and likewise behind it.
        full = [before[-1] / other[-1] if other[-1] > 0 else 1.0 for other in befores]
        behind, ahead = (sum(of) * share * (1 + slack) for of in (full[stage:], full[:stage]))
        first = int(np.searchsorted(before, before[-1] - behind))
        last = int(np.searchsorted(before, ahead, side="right")) - 1
        first, last = max(least, min(first, most)), min(most, max(last, least))
        ends.append(range(min(first, last), max(first, last) + 1))
    ends[-1] = range(units, units + 1)
    return ends


def least_slack(weights: Weights, stages: int) -> float:
    """Returns a lower bound on the longest stage's excess over an even share, over all cuts;
    `weights` as in `windows`."""
    share = _even_share(_before(weights, stages))
    if share <= 0.0:
        return 0.0
    ranges = [ranges_of(of_stage) for of_stage in _by_stage(weights, stages)]
    return least_longest(ends_only(ranges)) / share - 1.0


def _by_stage(weights: Weights, stages: int) -> Floats:
    """Returns each unit's weight in each stage, (stages, U)."""
    units = np.shape(weights)[-1]
    return np.broadcast_to(np.asarray(weights, dtype=np.float64), (stages, units))


def _before(weights: Weights, stages: int) -> list[Floats]:
    """Returns for each stage the cumulative weight before each unit and of all, (U + 1,)."""
    by_stage = _by_stage(weights, stages)
    return [np.concatenate([[0.0], np.cumsum(of_stage)]) for of_stage in by_stage]


def _even_share(befores: Sequence[Floats]) -> float:
    """Returns each stage's weight if all weigh the same."""
    first = befores[0][-1]
    if first <= 0:
        return 0.0
    return float(first / sum(first / before[-1] for before in befores))


def best_cuts(
    stage_s: StageTime,
    hops_s: Sequence[Sequence[float]],
    ends: Sequence[range],
    weights: Weights,
    repeats: Sequence[float],
    slack: float,
    alike: Alike | None = None,
) -> Cuts | None:
    """Returns the best cuts, or None. In windows of more than `FINE` cuts, evenly spaced ones are
    tried first, then those around the best: the result is optimal up to differences between single
    units.

    `hops_s[s][c]` are the seconds of a hop into stage s at the cut before unit c, `repeats` the c_s
    of the formula; `weights` are as in `windows`. Of equal stages (`alike`) only one is solved.
    """

    def best_of(ends: Sequence[Sequence[int]]) -> Cuts | None:
        table = _StageTimes(stage_s, ends, weights, repeats, slack, alike)
        return _best_of(table, hops_s)

    step = ceil(max(map(len, ends)) / FINE)
    best = best_of([_every(step, of) for of in ends])
    if best is None and step > 1:
        return best_of(ends)
    while best is not None and step > 1:
        reach, step = step, ceil(2 * step / FINE)
        around = [
            _every(step, range(max(of.start, cut - reach), min(of.stop, cut + reach + 1)))
            for of, cut in zip(ends, best.bounds[1:], strict=True)
        ]
        best = best_of(around)
    return best


def _every(step: int, cuts: range) -> Sequence[int]:
    """Returns evenly spaced cuts of a window, from the first to the last."""
    return cuts if step == 1 else sorted({*cuts[::step], cuts[-1]})


def _best_of(table: _StageTimes, hops_s: Sequence[Sequence[float]]) -> Cuts | None:
    """Returns the best of a table's cuts, as `best_cuts` does."""
    repeats = table.repeats
    limit, best = inf, None
    while True:
        bounds = table.least_sum(hops_s, limit)
        if bounds is None:
            return best
        if not table.know(bounds):
            continue
        times = [table.at(s, *bounds[s : s + 2]) for s in range(len(repeats))]
        through_s = sum(times) + 2 * sum(hops_over(hops_s, bounds))
        longest_s = max(map(mul, repeats, times))
        if best is None or through_s + longest_s < best.step_s:
            best = Cuts(bounds, through_s + longest_s)
        if through_s + table.least_longest_s() >= best.step_s:
            return best
        limit = longest_s


def hops_over(hops_s: Sequence[Sequence[float]], bounds: Sequence[int]) -> list[float]:
    """Returns the seconds of the hops behind all stages but the last, from `hops_s` of
    `best_cuts`."""
    return [hops_s[stage][cut] for stage, cut in enumerate(bounds[1:-1], 1)]


def looped_s(times_s: Sequence[float], hops_s: Sequence[float], run: Run) -> float:
    """Estimates the seconds of an interleaved step, from a micro-batch's seconds in each stage and
    of the hops behind all but the last: the mean of

        max over ranks r of [ sum over stages s < r of t_s + A sum of its stages' t ]
        A sum over chunks c of max t of the chunk + (p - 1) mean t

    and 2 sum x. The first is a lower bound, in which a rank waits only for its first tensor; in the
    second, ranks wait for each other in every chunk. Both are exact for equal stages without hops
    from A = p on. For 180 random pipelines with stages of up to twice the least, the mean is within
    10 %, and 1 % too high on average. With split backward ranks wait for little but their first
    tensor, of forwards only: the result is the first formula with a third of t.
    """
    each, batches = run.each, run.micro_batches
    if run.of.splits:
        before = np.concatenate([[0.0], np.cumsum(times_s)])
        ends = [
            before[own[0]] / FORWARD_SHARE + batches * sum(times_s[s] for s in own)
            for own in run.placed
        ]
        return float(max(ends)) + 2 * sum(hops_s)
    by_chunk = np.array(times_s).reshape(each, run.ranks)
    before = np.concatenate([[0.0], np.cumsum(by_chunk[0])[:-1]])
    alone = (before + batches * by_chunk.sum(axis=0)).max()
    together = batches * by_chunk.max(axis=1).sum() + (run.ranks - 1) * by_chunk.mean()
    return float((alone + together) / 2) + 2 * sum(hops_s)


def moved(bounds: tuple[int, ...], step_s: Callable[[tuple[int, ...]], float]) -> tuple[int, ...]:
    """Returns locally optimal cuts: no move of up to `RUN` consecutive cuts by one unit makes the
    step faster."""
    best_s = step_s(bounds)
    while True:
        steps = {other: step_s(other) for other in _neighbours(bounds)}
        best = min(steps, key=lambda other: steps[other], default=bounds)
        if steps.get(best, inf) >= best_s * (1.0 - GAIN):
            return bounds
        bounds, best_s = best, steps[best]


def _neighbours(bounds: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    cuts = len(bounds) - 2
    for run in range(1, min(cuts, RUN) + 1):
        for first in range(1, cuts - run + 2):
            for by in (-1, 1):
                moved = tuple(cut + by for cut in bounds[first : first + run])
                other = (*bounds[:first], *moved, *bounds[first + run :])
                if all(i < j for i, j in pairwise(other)):
                    yield other


class _StageTimes:
    """The known times of all stages allowed by the windows."""

    def __init__(
        self,
        stage_s: StageTime,
        ends: Sequence[Sequence[int]],
        weights: Weights,
        repeats: Sequence[float],
        slack: float,
        alike: Alike | None,
    ) -> None:
        befores = _before(weights, len(ends))
        share = _even_share(befores) * (1 + slack)
        self.repeats = repeats
        self._stage_s = stage_s
        self._begins: list[Sequence[int]] = [range(1), *ends[:-1]]
        self._ends = ends
        self._times: list[Floats] = []
        self._weights: list[Floats] = []
        self._known: list[NDArray[np.bool_]] = []
        self._numbers: list[NDArray[np.int64]] = []
        """The class numbers of stages, if given."""
        for s, (before, begins, stops) in enumerate(zip(befores, self._begins, ends, strict=True)):
            first, last = np.array(begins)[:, None], np.array(stops)[None, :]
            weight = before[last] - before[first]
            allowed = (first < last) & ((weight <= share) | (last == first + 1))
            self._times.append(np.where(allowed, weight, inf))
            self._weights.append(weight)
            self._known.append(~allowed)
            if alike is not None:
                self._numbers.append(alike(s, first, np.maximum(last, first + 1)))

    def know(self, bounds: Sequence[int]) -> bool:
        """Solves the stages between these cuts; returns whether all were already known."""
        all_known = True
        for stage, (begin, end) in enumerate(pairwise(bounds)):
            at = self._begins[stage].index(begin), self._ends[stage].index(end)
            if not self._known[stage][at]:
                all_known = False
                seconds = self._stage_s(stage, begin, end)
                self._learn(stage, at, seconds)
                if seconds == inf:
                    self._refuse(stage, *at)
                self._expect(stage)
        return all_known

    def _learn(self, stage: int, at: tuple[int, int], seconds: float) -> None:
        """Records the time of a stage and of equal ones."""
        times, known = self._times[stage], self._known[stage]
        times[at], known[at] = seconds, True
        if self._numbers:
            numbers = self._numbers[stage]
            same = (numbers == numbers[at]) & ~known
            times[same], known[same] = seconds, True

    def _refuse(self, stage: int, row: int, column: int) -> None:
        """Excludes all stages that contain one that does not fit, since they need no less
        memory."""
        for values, value in ((self._times[stage], inf), (self._known[stage], True)):
            values[: row + 1, column:] = value

    def _expect(self, stage: int) -> None:
        """Raises the times of unknown stages of a position to those expected from the known
        ones."""
        times, weight, known = self._times[stage], self._weights[stage], self._known[stage]
        told = known & np.isfinite(times) & (weight > 0)
        if told.any():
            rates = times[told] / weight[told]
            best = int(rates.argmin())
            # A constant part makes short stages slower than the best rate, and longer ones faster:
            # extrapolate these by computation only.
            more = np.minimum(rates[best] * weight, times[told][best] - weight[told][best] + weight)
            times[~known] = np.maximum(times[~known], NEAR * more[~known])

    def at(self, stage: int, begin: int, end: int) -> float:
        """Returns the seconds of a stage."""
        row, column = self._begins[stage].index(begin), self._ends[stage].index(end)
        return float(self._times[stage][row, column])

    def least_longest_s(self) -> float:
        """Returns a lower bound on the longest stage's repeated time, over all cuts."""
        return max(least_longest(self._ahead), 0.0)

    @property
    def _ahead(self) -> list[Floats]:
        return [
            np.multiply(times, repeat, out=np.full(times.shape, inf), where=np.isfinite(times))
            for repeat, times in zip(self.repeats, self._times, strict=True)
        ]

    def least_sum(
        self, hops_s: Sequence[Sequence[float]], limit_s: float
    ) -> tuple[int, ...] | None:
        """Returns the bounds of the stages with the least sum of times and hops, all repeated times
        being below a limit, or None."""
        into = [
            2 * np.array([hops_s[stage][c] for c in self._begins[stage]])
            for stage in range(1, len(self._ends))
        ]
        through = [
            times + hops[:, None]
            for times, hops in zip(self._times, [np.zeros(1), *into], strict=True)
        ]
        columns = least_sum(through, self._ahead, limit_s)
        if columns is None:
            return None
        return (0, *(ends[at] for ends, at in zip(self._ends, columns, strict=True)))
