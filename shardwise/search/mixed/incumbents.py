"""Initial strategies of a search on several kinds.

Data parallelism under every proportion, with gradients summed by a collective, at a server or under
a ZeRO stage, without and with recomputation. They include EV and CP with PS and AllReduce (HeteroG
§6.1), and each group of devices alone.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwise.cost.gradient_sums import COLLECTIVE
from shardwise.cost.group_costs import GroupCosts
from shardwise.cost.mixed.assemble import MixedProblem
from shardwise.cost.space import EVEN, NONE
from shardwise.sharding.layout import Floats
from shardwise.sharding.names import sample_variables


@dataclass(frozen=True)
class Wish:
    """Data parallelism under a proportion, a kind of gradient sum, a ZeRO stage."""

    proportion: int
    gradient_sum: int
    stage: int
    recompute: bool


def incumbents(problem: MixedProblem) -> NDArray[np.uint32]:
    """Returns choices (S, groups)."""
    return np.unique(strategies(problem, list(wishes(problem))), axis=0)


def wishes(problem: MixedProblem) -> Iterator[Wish]:
    """Yields every combination of proportion, gradient sum, ZeRO stage and recomputation."""
    cluster = problem.cluster
    sums = problem.context.mesh.gradient_sums
    for recompute in (False, True):
        for number, proportion in enumerate(cluster.proportions):
            for stage in (0, 3) if number != EVEN else (0, 1, 2, 3):
                yield Wish(number, COLLECTIVE, stage, recompute)
            if not proportion.is_whole:
                continue
            for kind, special in enumerate(sums):
                for stage in special.stages if special is not None else ():
                    yield Wish(number, kind, stage, recompute)


def strategies(problem: MixedProblem, wished: list[Wish]) -> NDArray[np.uint32]:
    """Returns the strategies nearest to the wishes, (wished, groups)."""
    samples = sample_variables(problem.coarsened)
    known: dict[Hashable, list[int]] = {}
    columns = []
    for g, (cost, variables) in enumerate(zip(problem.costs, samples, strict=True)):
        key = (id(cost), variables)
        if key not in known:
            total = np.max([place.costs[g].time_s for place in problem.places], axis=0)
            near = _Nearest(problem, cost, variables, total)
            known[key] = [near.row(wish) for wish in wished]
        columns.append(known[key])
    return np.array(columns, dtype=np.uint32).T


class _Nearest:
    """The rows of one group, and their distance to a wish."""

    def __init__(
        self, problem: MixedProblem, cost: GroupCosts, samples: tuple[int, ...], time_s: Floats
    ) -> None:
        self._cost, self._time_s = cost, time_s
        sizes = problem.context.mesh.sizes
        shares = np.zeros(len(time_s), dtype=np.int64)
        for variable in samples:
            split = cost.assignment == variable
            only = (split | (cost.assignment == NONE)).all(axis=1)
            shares = np.maximum(shares, np.where(only, np.where(split, sizes, 1).prod(axis=1), 0))
        self._shares = shares

    def row(self, wish: Wish) -> int:
        """Returns the row nearest to a wish in proportion, recomputation, split, sum and stage,
        then the fastest."""
        cost = self._cost
        keys = (
            self._time_s,
            np.abs(cost.zero.astype(np.int64) - wish.stage),
            cost.gradient_sum != wish.gradient_sum,
            -self._shares,
            cost.recompute != wish.recompute,
            cost.proportion != wish.proportion,
        )
        return int(np.lexsort(keys)[0])
