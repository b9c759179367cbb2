"""Sums over the groups and edges of a problem: of seconds, of bytes, of the host's time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from shardwise.cost.alike import Alike, alike, alike_edges
from shardwise.cost.assemble import SearchProblem, fixed_host_s
from shardwise.cost.host import Launching
from shardwise.sharding.layout import Floats
from shardwise.sharding.once import Once

Choices = NDArray[np.unsignedinteger]

NOTHING: Floats = np.zeros(1)
"""The costs of an edge without influence."""


@dataclass(frozen=True)
class OwnerCosts:
    """A sum over owners: per group an array (K,), per edge one (R, C, A) or 0.

    Owners that cost alike share one array.
    """

    constant: float
    groups: Sequence[Floats]
    edges: Sequence[Floats]
    _made: Once = field(default_factory=Once, compare=False, repr=False)

    def of(self, problem: SearchProblem, choices: Choices, edge_choices: Choices) -> Floats:
        """Returns the sum for P strategies, (P, groups) and (P, edges); shape (P,)."""
        each = self.each(problem, choices, edge_choices)
        # Owner by owner, so that sums do not depend on which owners cost alike.
        return np.asarray(np.add.reduce(each, axis=0, initial=self.constant))

    def each(self, problem: SearchProblem, choices: Choices, edge_choices: Choices) -> Floats:
        """Returns what each group and then each edge costs, shape (groups + edges, P)."""
        edges, groups = problem.edges, len(self.groups)
        each = np.zeros((groups + len(edges), len(choices)))
        chosen = np.ascontiguousarray(choices.T)
        like_groups, like_edges = self._alike(problem)
        for of in like_groups:
            each[of] = self.groups[of[0]][chosen[of]]
        alternatives = edge_choices.T
        for like in like_edges:
            costs, table = self.edges[like.first], edges[like.first].table
            if costs.size > 1:
                at = table.rows[chosen[like.sources]], table.columns[chosen[like.targets]]
                each[groups + like.edges] = costs[(*at, alternatives[like.edges])]
        return each

    def _alike(self, problem: SearchProblem) -> tuple[list[list[int]], list[Alike]]:
        """Returns the groups and the edges of a problem that cost alike, found once."""

        def found() -> tuple[list[list[int]], list[Alike]]:
            tables = [edge.table for edge in problem.edges]
            return alike(self.groups), alike_edges(problem.edges, tables, self.edges)

        # With the problem, to keep its id from being reused.
        return self._made.once(id(problem), lambda: (problem, found()))[1]


def priced(sums: Sequence[tuple[float, OwnerCosts]]) -> OwnerCosts:
    """Returns the sum of sums, each at its price; owners that cost alike share one array."""
    if len(sums) == 1 and sums[0][0] == 1.0:
        return sums[0][1]
    known: dict[tuple[int, ...], Floats] = {}
    prices = [price for price, _ in sums]

    def totals(of_owners: Sequence[Sequence[Floats]]) -> list[Floats]:
        keys = zip(*(map(id, arrays) for arrays in of_owners), strict=True)
        made = []
        for key, parts in zip(keys, zip(*of_owners, strict=True), strict=True):
            if key not in known:
                counted = [
                    p * a for p, a in zip(prices, parts, strict=True) if a is not NOTHING if p
                ]
                known[key] = sum(counted, NOTHING) if counted else NOTHING
            made.append(known[key])
        return made

    return OwnerCosts(
        sum(price * costs.constant for price, costs in sums),
        totals([costs.groups for _, costs in sums]),
        totals([costs.edges for _, costs in sums]),
    )


def host_costs(problem: SearchProblem) -> OwnerCosts | None:
    """Returns the host's time of a step; None if launching takes no time."""
    if Launching.of(problem.context).is_free:
        return None
    return OwnerCosts(
        fixed_host_s(problem.context, problem.coarsened),
        [costs.host_s for costs in problem.costs],
        [edge.table.host_s for edge in problem.edges],
    )
