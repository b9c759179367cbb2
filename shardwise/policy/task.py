"""A task of a policy: one problem, the network's inputs, and replay of what units are told."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwise.cost.gradient_sums import COLLECTIVE
from shardwise.cost.mixed.proportions import Proportion
from shardwise.cost.space import EVEN
from shardwise.policy.actions import Actions
from shardwise.policy.architecture import Size
from shardwise.policy.features import Inputs, inputs_of
from shardwise.replay.mixed.bounds import MixedBound, MixedLinear
from shardwise.search.improve import Choices, Improver, Pool
from shardwise.search.mixed.incumbents import Wish
from shardwise.search.mixed.search import MixedSearch, limits_of
from shardwise.sharding.layout import Floats

Decisions = NDArray[np.int64]
"""The actions of units, (S, units) or (units,)."""

OUT_OF_MEMORY = 10.0
"""By what the reward of a strategy that does not fit is multiplied (HeteroG §4.1.3)."""


@dataclass(frozen=True)
class Task:
    """A problem whose `unit` (groups,) says which unit decides for each group.

    Times are rewarded relative to `scale_s`.
    """

    search: MixedSearch
    improver: Improver
    actions: Actions
    inputs: Inputs
    unit: NDArray[np.int64]
    scale_s: float

    @classmethod
    def of(cls, search: MixedSearch, improver: Improver, size: Size, scale_s: float) -> Task:
        """Returns the task of a search that has been joined; `improver` replays its strategies."""
        actions = Actions.of(search.problem)
        limits = limits_of(search.problem, search.options)
        inputs, unit = inputs_of(search.problem, actions, limits, size)
        return cls(search, improver, actions, inputs, unit, scale_s)

    @property
    def units(self) -> int:
        """How many units decide."""
        return self.inputs.units.count

    def choices(self, decisions: Decisions) -> Choices:
        """Returns the configurations of groups (S, groups) that units' actions (S, units) mean."""
        groups = np.arange(len(self.unit))
        return np.ascontiguousarray(self.actions.rows[decisions[:, self.unit], groups])

    def replayed(self, decisions: Decisions) -> Pool:
        """Returns the strategies of units' actions, replayed."""
        return self.improver.replayed(self.choices(decisions))

    def rewards(self, pool: Pool) -> Floats:
        """Returns R = -√(T / scale), ten times as much where memory is exceeded, (S,)."""
        reward = -np.sqrt(pool.time_s / self.scale_s)
        return np.where(pool.fits(self.search.limit_bytes), reward, OUT_OF_MEMORY * reward)

    def fitting(self, choices: NDArray[np.uint32]) -> Floats:
        """Returns how well each action fits a strategy's choices (groups,), (units, actions): the
        mean over a unit's groups, weighted by their time."""
        shares = self.actions.nearest(self.search.problem, choices).T
        costs = self.search.problem.costs
        seconds = np.array([float(cost.time_s[k]) for cost, k in zip(costs, choices, strict=True)])
        weights = seconds + 1e-6 * max(float(seconds.sum()), 1e-9)
        summed = np.zeros((self.units, shares.shape[1]))
        np.add.at(summed, self.unit, shares * weights[:, None])
        return np.asarray(summed / summed.sum(axis=1, keepdims=True))

    def seeds(self) -> Decisions:
        """Returns the strategies with which a pool begins, (S, units): EV and CP with PS and
        AllReduce, one block alone, and blocks in turns (HeteroG's published code)."""
        problem = self.search.problem
        proportions, sums = problem.cluster.proportions, problem.context.mesh.gradient_sums
        server = next(n for n, one in enumerate(sums) if one is not None and 0 in one.stages)
        uneven = [n for n, one in enumerate(proportions) if one.is_whole and n != EVEN][:2]
        wished = [Wish(p, s, 0, False) for p in (EVEN, *uneven) for s in (COLLECTIVE, server)]
        blocks = [n for n, one in enumerate(proportions) if _is_one_block(one)]
        wished += [Wish(n, COLLECTIVE, 0, False) for n in blocks[:1]]
        found = [self.actions.find(wish) for wish in wished]
        seeds = [np.full(self.units, number) for number in found if number is not None]
        turns = [self.actions.find(Wish(n, COLLECTIVE, 0, False)) for n in blocks]
        if known := [number for number in turns if number is not None]:
            seeds.append(np.resize(known, self.units))
        return np.stack(seeds).astype(np.int64)


def _is_one_block(proportion: Proportion) -> bool:
    return len(proportion.support) == 1


def task_of(search: MixedSearch, size: Size, scale_s: float) -> Task:
    """Returns the task of a joined search, with an improver that charges the sum of all times."""
    replayer = search.mixed_replayer
    sums = MixedLinear(replayer).weighted(MixedBound(replayer).sums())
    return Task.of(search, Improver(replayer, sums, search.limit_bytes), size, scale_s)
