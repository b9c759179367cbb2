"""Weighted sums over a step program as costs of groups and edges.

Every duration is one cell: a column of one owner's table, in the row that the owner has chosen. So
for weights w of tasks,

    sum over tasks t of w_t p_t(s) = constant + sum over groups of f_g(s_g) + sum over edges of f_e

where f are the columns of the owner, weighted. Minimising such a sum over all strategies is one
elimination. Owners with equal tables and equal weights share their costs.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from shardwise.cost.assemble import SearchProblem
from shardwise.replay.owner_costs import NOTHING, OwnerCosts, priced
from shardwise.replay.replay import Replayer
from shardwise.sharding.layout import Floats

STEPS = 2.0**30
"""Weights are rounded down to multiples of 1 / STEPS, so that equal layers have equal ones."""


def evened(problem: SearchProblem, costs: OwnerCosts) -> OwnerCosts:
    """Returns the costs, averaged over owners with equal tables.

    Equal layers then have equal costs, as in a sum, and share their tables.
    """
    of_groups = _means([id(cost) for cost in problem.costs], costs.groups)
    of_edges = _means([id(edge.table) for edge in problem.edges], costs.edges)
    return OwnerCosts(costs.constant, of_groups, of_edges)


def _means(keys: Sequence[int], arrays: Sequence[Floats]) -> list[Floats]:
    """Returns for each array the mean of those with its key."""
    often: dict[int, dict[int, int]] = {}
    by_id = {id(array): array for array in arrays}
    for key, array in zip(keys, arrays, strict=True):
        of_key = often.setdefault(key, {})
        of_key[id(array)] = of_key.get(id(array), 0) + 1
    means: dict[int, Floats] = {}
    for key, counts in often.items():
        total = sum(counts.values())
        means[key] = (
            by_id[next(iter(counts))]
            if len(counts) == 1
            else sum((count / total * by_id[n] for n, count in counts.items()), NOTHING)
        )
    return [means[key] for key in keys]


class LinearStep:
    """The sums over the tasks of a replayer's program."""

    def __init__(self, replayer: Replayer) -> None:
        self._replayer = replayer

    def weighted(self, weights: Floats) -> OwnerCosts:
        """Returns the durations of all tasks and the host's time, weighted (tasks + 1,), as costs
        of their owners."""
        host_weight, weights = float(weights[-1]), np.floor(weights[:-1] * STEPS) / STEPS
        tasks, host = self._of_tasks(weights), self._replayer.host
        if host is None or host_weight == 0.0:
            return tasks
        return priced([(1.0, tasks), (host_weight, host)])

    def _of_tasks(self, weights: Floats) -> OwnerCosts:
        """Returns the durations of all tasks, weighted (tasks,)."""
        replayer = self._replayer
        problem = replayer.problem
        groups: list[Floats] = [np.zeros(len(cost.time_s)) for cost in problem.costs]
        edges: list[Floats] = [NOTHING] * len(problem.edges)
        known: dict[Hashable, Floats] = {}
        for table, picks in replayer.durations.picks.items():
            values = replayer.edge_values(table)
            width = int(picks.columns.max()) + 1
            owners, inverse = picks.by_owner
            cells, of_cells = inverse * width + picks.columns, weights[picks.items]
            sums = np.bincount(cells, of_cells, len(owners) * width)
            of_owner = np.asarray(sums, dtype=np.float64).reshape(len(owners), width)
            for owner, row in zip(owners.tolist(), of_owner, strict=True):
                key = (table, row.tobytes())
                if key not in known:
                    if values is None:
                        known[key] = replayer.group_values(table)[:, :width] @ row
                    else:
                        known[key] = values.weighted(row)
                if values is None:
                    groups[owner] = known[key]
                else:
                    edges[owner] = known[key]
        constant = float(replayer.durations.constants @ weights)
        return OwnerCosts(constant, groups, edges)
