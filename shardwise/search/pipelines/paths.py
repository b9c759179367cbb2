"""A lower bound on the step of any schedule over all cuts, by paths through the schedule.

A chain of dependent actions takes no longer than the passes, and with the update of its last rank
no longer than the step. With n_s forwards and m_s backwards of stage s on the chain, t = f + b, and
b at least the computation of backward,

    T >= sum over s of [ min(n_s, m_s) t_s + max(m_s - n_s, 0) b_s ] + updates of its last rank

With split backward, I and W are separate actions. A chain with each part of a stage at least n_s
times takes n_s t_s, plus the least computation of every further part.

Any mean of paths is a bound too; its least value over all cuts is one programme, stage by stage.
The best mean is that of a game between paths and cuts: cuts answer with the least value of a mean
of paths, paths with the longest under a mean of cuts. Each programme is a proof, wherever the game
ends. The value is that of means of cuts, so it is below the best cut if stages have few units,
which a cut cannot divide.
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
"""Maximum number of paths."""

NEAR = 1e-3
"""The game ends when its value is this near the best bound, relative."""


def least_by_paths(
    order: Schedule, ranges_s: Sequence[Floats], parts_s: Sequence[Floats], update_s: Floats
) -> Bound:
    """Returns a lower bound on the step of a schedule, over all cuts.

    `ranges_s` has per stage, (U + 1, U + 1), lower bounds on forward and backward of one
    micro-batch in each range of units. `parts_s`, (U,) each, are lower bounds on one micro-batch's
    computation in each unit: of backward if it is whole, of forward, I and W if it is split.
    `update_s` (U,) has each unit's update.
    """
    game = _Cuts(ranges_s, [ranges_of(part) for part in parts_s], ranges_of(update_s))
    paths: list[Floats] = []
    once = (1.0, *[0.0] * len(parts_s), 0.0)
    best = game.least(np.tile(once, (order.stages, 1)))
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
    """The times of paths through the stages between cuts. A path is (stages, 2 + parts): the
    numbers of whole passes, of further parts, and of updates in each stage."""

    def __init__(self, ranges_s: Sequence[Floats], parts: Sequence[Floats], update: Floats) -> None:
        self.ranges_s = ranges_s
        self.parts = parts
        self._others = (*parts, update)

    def value_s(self, cut: tuple[int, ...], path: Floats) -> float:
        """Returns a lower bound on a path's time."""
        return sum(
            float(path[stage] @ (self.ranges_s[stage][place], *(of[place] for of in self._others)))
            for stage, place in enumerate(pairwise(cut))
        )

    def least(self, path: Floats) -> Bound:
        """Returns the least time of a path over all cuts, and those cuts."""
        through = []
        for of_stage, ranges in zip(path, self.ranges_s, strict=True):
            whole, *often = of_stage.tolist()
            some, own = np.isfinite(ranges), np.full(ranges.shape, inf)
            own[some] = whole * ranges[some]
            for times, part in zip(often, self._others, strict=True):
                own[some] += times * part[some]
            through.append(own)
        through = ends_only(through)
        columns = least_sum(through, through, inf)
        if columns is None:
            return Bound(inf)
        cuts = (0, *columns[:-1], len(self._others[-1]) - 1)
        return Bound(sum(of_cuts(through, columns)), cuts)


def _longest(order: Schedule, game: _Cuts, cuts: Sequence[tuple[int, ...]], mix: Floats) -> Floats:
    """Returns a schedule's longest path under the mean stage times of some cuts."""
    times = []
    for stage in range(order.stages):
        places = [cut[stage : stage + 2] for cut in cuts]
        passes = float(mix @ [game.ranges_s[stage][place] for place in places])
        backward = [float(mix @ [part[place] for place in places]) for part in game.parts]
        times.append(_stage_times(passes, backward[-2:]))
    counts = np.zeros((order.stages, 3))
    rank, number, spans = _last(order, times)
    ended = {
        action.work: (r, n)
        for r, actions in enumerate(order.ranks)
        for n, action in enumerate(actions)
    }
    update = np.zeros((order.stages, 1))
    update[list(order.placement.stages_of(rank))] = 1.0
    while True:
        action = order.ranks[rank][number]
        counts[action.stage, _PARTS[action.kind]] += 1
        before = _before(order, action, rank, number, ended)
        if not before:
            break
        rank, number = max(before, key=lambda at: spans[at[0]][at[1]][1])
    # In a whole backward I and W are one part, and a further forward has no bound.
    parts = counts if len(game.parts) > 1 else counts[:, :2]
    whole = parts.min(axis=1, keepdims=True)
    return np.concatenate([whole, (parts - whole)[:, -len(game.parts) :], update], axis=1)


_PARTS = {Kind.FORWARD: [0], Kind.INPUTS: [1], Kind.WEIGHTS: [2], Kind.BACKWARD: [1, 2]}
"""Which of a micro-batch's three parts an action is."""


def _stage_times(passes: float, backward: Sequence[float]) -> StageTimes:
    """Returns a stage's times, with backward, or I and W, at their least computation."""
    inputs = min(backward[0], passes)
    weights = min(backward[1], passes - inputs) if len(backward) > 1 else 0.0
    return StageTimes(max(passes - inputs - weights, 0.0), inputs, weights)


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
    """Returns the predecessors of an action, by rank and number: its rank's previous one, and its
    inputs."""
    wanted = [
        ended[work] for either in needs(action, order.stages) for work in either if work in ended
    ]
    return wanted + ([(rank, number - 1)] if number else [])
