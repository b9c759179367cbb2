"""Sums over the groups and edges of a problem: of seconds, of bytes, of the host's time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwise.cost.assemble import SearchProblem, fixed_host_s
from shardwise.cost.host import Launching
from shardwise.sharding.layout import Floats

Choices = NDArray[np.unsignedinteger]

NOTHING: Floats = np.zeros(1)
"""The costs of an edge on which nothing depends."""


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


def host_costs(problem: SearchProblem) -> OwnerCosts | None:
    """Returns the host's time of a step; None where launching takes no time."""
    if Launching.of(problem.context).is_free:
        return None
    return OwnerCosts(
        fixed_host_s(problem.context, problem.coarsened),
        [costs.host_s for costs in problem.costs],
        [edge.table.host_s for edge in problem.edges],
    )
