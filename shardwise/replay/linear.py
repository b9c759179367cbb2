"""Weighted sums over a step program as costs of groups and edges.

Every duration is one cell: a column of one owner's table, in the row that the owner has chosen. So
for weights w of tasks,

    sum over tasks t of w_t p_t(s) = constant + sum over groups of f_g(s_g) + sum over edges of f_e

where f are the columns of the owner, weighted. Minimising such a sum over all strategies is one
elimination. Owners with equal tables and equal weights share their costs.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from shardwise.cost.assemble import SearchProblem
from shardwise.replay.replay import Choices, Replayer
from shardwise.sharding.layout import Floats

STEPS = 2.0**30
"""Weights are rounded down to multiples of 1 / STEPS, so that equal layers have equal ones."""


@dataclass(frozen=True)
class OwnerCosts:
    """A sum over owners: per group an array (K,), per edge one (R, C, A) or 0.

    Owners that cost alike share one array.
    """

    constant: float
    groups: Sequence[Floats]
    edges: Sequence[Floats]

    def of(self, problem: SearchProblem, choices: Choices, edge_choices: Choices) -> Floats:
        """Returns the sum for P strategies, (P, groups) and (P, edges); shape (P,)."""
        total = np.full(len(choices), self.constant)
        for g, costs in enumerate(self.groups):
            total += costs[choices[:, g]]
        for e, (edge, costs) in enumerate(zip(problem.edges, self.edges, strict=True)):
            if costs.size > 1:
                row = edge.table.rows[choices[:, edge.source]]
                column = edge.table.columns[choices[:, edge.target]]
                total += costs[row, column, edge_choices[:, e]]
        return total


def priced(sums: Sequence[tuple[float, OwnerCosts]]) -> OwnerCosts:
    """Returns the sum of sums, each at its price; owners that cost alike share one array."""
    if len(sums) == 1 and sums[0][0] == 1.0:
        return sums[0][1]
    known: dict[tuple[int, ...], Floats] = {}

    def total(parts: list[Floats]) -> Floats:
        key = tuple(id(part) for part in parts)
        if key not in known:
            counted = [(p, a) for (p, _), a in zip(sums, parts, strict=True) if a is not NOTHING]
            known[key] = sum((p * a for p, a in counted if p), NOTHING) if counted else NOTHING
        return known[key]

    groups = range(len(sums[0][1].groups))
    edges = range(len(sums[0][1].edges))
    return OwnerCosts(
        sum(price * costs.constant for price, costs in sums),
        [total([costs.groups[g] for _, costs in sums]) for g in groups],
        [total([costs.edges[e] for _, costs in sums]) for e in edges],
    )


def evened(problem: SearchProblem, costs: OwnerCosts) -> OwnerCosts:
    """Returns costs of which owners with equal tables have the mean of all of them.

    Equal layers then cost alike, as they do in a sum, and share their tables.
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


NOTHING: Floats = np.zeros(1)
"""The costs of an edge on which nothing depends."""


class LinearStep:
    """The sums over the tasks of a replayer's program."""

    def __init__(self, replayer: Replayer) -> None:
        self._replayer = replayer

    def weighted(self, weights: Floats) -> OwnerCosts:
        """Returns the durations of all tasks, weighted (T,), as costs of their owners."""
        replayer = self._replayer
        problem = replayer.problem
        weights = np.floor(weights * STEPS) / STEPS
        groups: list[Floats] = [np.zeros(len(cost.time_s)) for cost in problem.costs]
        edges: list[Floats] = [NOTHING] * len(problem.edges)
        known: dict[Hashable, Floats] = {}
        for table, picks in replayer.durations.picks.items():
            values = replayer.edge_values(table)
            width = int(picks.columns.max()) + 1
            owners, inverse = np.unique(picks.owners, return_inverse=True)
            of_owner = np.zeros((len(owners), width))
            np.add.at(of_owner, (inverse, picks.columns), weights[picks.items])
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
