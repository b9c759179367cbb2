"""A bound on the step of any schedule, wherever a pipeline is cut: paths through the schedule.

A chain of actions, of which each waits for the one before it, takes no longer than the passes, and
with the update of the rank that it ends on no longer than the step. With n_s forwards and m_s
backwards of stage s on it, t = f + b and b at least what backward computes,

    T >= sum over s of [ min(n_s, m_s) t_s + max(m_s - n_s, 0) b_s ] + updates of its last rank

Any mean of paths is a bound too, whatever the cuts are; the least of it over all cuts is one
programme, stage by stage. The best mean is that of a game between paths and cuts: cuts answer with
those that make a mean of paths least, paths with the longest under a mean of cuts. Each programme
is a proof, wherever the game ends. The value of the game is that of means of cuts, so where stages
have few units, and none can have a part of one, it is below the best cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import inf

import numpy as np

from shardwise.pipeline.actions import Action, Kind, Schedule
from shardwise.pipeline.dependencies import Work, needs
from shardwise.pipeline.simulate import StageTimes, simulate
from shardwise.search.linear_programme import equilibrium
from shardwise.search.pipelines.bounds import Bound, ends_only, ranges_of
from shardwise.search.pipelines.programme import least_sum, of_cuts
from shardwise.sharding.layout import Floats

MOVES = 24
"""The most paths that are met."""

NEAR = 1e-3
"""The game ends when its value is this near the best bound, relative."""


def least_by_paths(
    order: Schedule, ranges_s: Sequence[Floats], backward_s: Floats, update_s: Floats
) -> Bound:
    """Returns a bound on the step of a schedule whose backwards are whole, wherever it is cut.

    `ranges_s` is for each stage, (U + 1, U + 1), what forward and backward of one micro-batch take
    at least in each range of units; `backward_s` and `update_s` (U,) are what one micro-batch's
    backward computes in each unit at least, and what the update does.
    """
    backward, update = ranges_of(backward_s), ranges_of(update_s)
    game = _Cuts(ranges_s, backward, update)
    paths: list[Floats] = []
    best = game.least(np.tile((1.0, 0.0, 0.0), (order.stages, 1)))
    if best.step_s == inf:
        return best
    cuts, mix = [best.cuts], np.ones(1)
    for _ in range(MOVES):
        paths.append(_longest(order, game, cuts, mix))
        values = np.array([[game.value_s(cut, path) for path in paths] for cut in cuts])
        now = equilibrium(values, np.zeros((len(cuts), 0)), 1.0)
        mean = sum(float(share) * path for share, path in zip(now.paths, paths, strict=True))
        bound = game.least(np.asarray(mean))
        best = max(best, bound, key=lambda one: one.step_s)
        if now.value_s <= best.step_s * (1.0 + NEAR):
            break
        mix = np.asarray(now.strategies)
        if bound.cuts not in cuts:
            cuts.append(bound.cuts)
            values = np.array([[game.value_s(c, path) for path in paths] for c in cuts])
            mix = np.asarray(equilibrium(values, np.zeros((len(cuts), 0)), 1.0).strategies)
    return best


class _Cuts:
    """What paths take through the stages between cuts. A path is (stages, 3): how often it has a
    whole pass, another backward and the update of each."""

    def __init__(self, ranges_s: Sequence[Floats], backward: Floats, update: Floats) -> None:
        self.ranges_s = ranges_s
        self.backward = backward
        self._update = update

    def value_s(self, cut: tuple[int, ...], path: Floats) -> float:
        """Returns what a path takes at least."""
        return sum(
            float(
                path[stage]
                @ (self.ranges_s[stage][place], self.backward[place], self._update[place])
            )
            for stage, place in enumerate(pairwise(cut))
        )

    def least(self, path: Floats) -> Bound:
        """Returns the least that a path takes over all cuts, and the cuts of it."""
        through = []
        for of_stage, ranges in zip(path, self.ranges_s, strict=True):
            whole, backward, update = of_stage.tolist()
            some, own = np.isfinite(ranges), np.full(ranges.shape, inf)
            own[some] = (
                whole * ranges[some] + backward * self.backward[some] + update * self._update[some]
            )
            through.append(own)
        through = ends_only(through)
        columns = least_sum(through, through, inf)
        if columns is None:
            return Bound(inf)
        cuts = (0, *columns[:-1], len(self.backward) - 1)
        return Bound(sum(of_cuts(through, columns)), cuts)


def _longest(order: Schedule, game: _Cuts, cuts: Sequence[tuple[int, ...]], mix: Floats) -> Floats:
    """Returns the longest path of a schedule with the mean seconds of some cuts' stages."""
    times = []
    for stage in range(order.stages):
        places = [cut[stage : stage + 2] for cut in cuts]
        passes = float(mix @ [game.ranges_s[stage][place] for place in places])
        backward = min(float(mix @ [game.backward[place] for place in places]), passes)
        times.append(StageTimes(max(passes - backward, 0.0), backward, 0.0))
    counts = np.zeros((order.stages, 2))
    rank, number, spans = _last(order, times)
    ended = {
        action.work: (r, n)
        for r, actions in enumerate(order.ranks)
        for n, action in enumerate(actions)
    }
    path = np.zeros((order.stages, 3))
    path[list(order.placement.stages_of(rank)), 2] = 1.0
    while True:
        action = order.ranks[rank][number]
        counts[action.stage, int(action.kind is not Kind.FORWARD)] += 1
        before = _before(order, action, rank, number, ended)
        if not before:
            break
        rank, number = max(before, key=lambda at: spans[at[0]][at[1]][1])
    path[:, 0] = counts.min(axis=1)
    path[:, 1] = np.maximum(counts[:, 1] - counts[:, 0], 0.0)
    return path


def _last(
    order: Schedule, times: Sequence[StageTimes]
) -> tuple[int, int, tuple[tuple[tuple[float, float], ...], ...]]:
    """Returns the rank that ends last, the number of its last action, and when all run."""
    spans = simulate(order, times).spans_s
    rank = max(range(len(spans)), key=lambda r: spans[r][-1][1])
    return rank, len(spans[rank]) - 1, spans


def _before(
    order: Schedule,
    action: Action,
    rank: int,
    number: int,
    ended: dict[Work, tuple[int, int]],
) -> list[tuple[int, int]]:
    """Returns what an action waits for, by rank and number: its rank's last one, and its needs."""
    wanted = [
        ended[work] for either in needs(action, order.stages) for work in either if work in ended
    ]
    return wanted + ([(rank, number - 1)] if number else [])
