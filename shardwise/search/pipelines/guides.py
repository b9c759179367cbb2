"""Guides: strategies of a whole model in which groups of equal costs choose alike.

What repeats is one operator of the solver's problem, with the costs of all its groups together, and
so are crossings between the same two: the layers of a deep model are no more work than one of them.
A crossing from a group to one of equal costs depends on what both choose, so it costs these groups
something of their own: the fastest of its alternatives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwise import _core
from shardwise.cost.assemble import SearchEdge, SearchProblem
from shardwise.cost.crossings import EdgeTable
from shardwise.search.elimination import occurring, places
from shardwise.search.solver_errors import solver_errors
from shardwise.sharding.layout import Floats

EPSILON = 0.02
"""How far guides may be from the best of such strategies."""


@dataclass(frozen=True)
class _Crossing:
    """Crossings with a table in common, between two classes of groups or within one."""

    source: int
    target: int
    table: EdgeTable
    count: int


@dataclass(frozen=True)
class _Classes:
    """The solver's problem with an operator for each class of groups of equal costs.

    `rows` are the rows of the whole problem that choices of a class refer to, `of_group` is the
    class of each group, (groups,).
    """

    problem: _core.Problem
    rows: list[NDArray[np.int64]]
    of_group: NDArray[np.int64]

    @classmethod
    def of(cls, whole: SearchProblem) -> _Classes:
        """Returns the classes of a problem."""
        numbers: dict[int, int] = {}
        of_group = np.array([numbers.setdefault(id(cost), len(numbers)) for cost in whole.costs])
        costs = [whole.costs[int(group)] for group in np.unique(of_group, return_index=True)[1]]
        rows = [np.flatnonzero(cost.summed) for cost in costs]
        members = np.bincount(of_group).tolist()
        memory = [n * of.memory_bytes[own] for n, of, own in zip(members, costs, rows, strict=True)]
        time = [n * of.time_s[own] for n, of, own in zip(members, costs, rows, strict=True)]
        crossings = _crossings(whole.edges, of_group)
        for crossing in crossings:
            if (own := crossing.source) == crossing.target:
                added_bytes, added_s = _within(crossing.table, rows[own])
                memory[own] = memory[own] + crossing.count * added_bytes
                time[own] = time[own] + crossing.count * added_s
        problem = _core.Problem()
        for own, costs_of in enumerate(zip(memory, time, strict=True)):
            problem.add_operator(f"{own}", problem.add_costs(*costs_of))
        _add_edges(problem, [one for one in crossings if one.source != one.target], rows)
        return cls(problem, rows, of_group)

    def fastest(self, target_bytes: float) -> tuple[float, NDArray[np.int64]]:
        """Returns the memory and the rows, (groups,), of the fastest strategy within a memory;
        those of one with the least memory where none is.

        Raises as `regular_strategies`.
        """
        with solver_errors():
            solution = _core.solve(
                self.problem, method="auto", epsilon=EPSILON, memory_target_bytes=target_bytes
            )
        fitting = np.flatnonzero(solution.memory_bytes <= target_bytes)
        point = int(fitting[-1]) if len(fitting) else 0
        chosen = zip(self.rows, solution.choices[point], strict=True)
        by_class = np.array([own[choice] for own, choice in chosen])
        return float(solution.memory_bytes[point]), by_class[self.of_group]


def regular_strategies(
    problem: SearchProblem, targets_bytes: Sequence[float]
) -> list[NDArray[np.int64]]:
    """Returns for each memory, that of the sums without what is fixed, the fastest strategy within
    it, (groups,), in which groups of equal costs choose alike; one with the least memory where none
    is. Memories are descending.

    Raises `Cancelled`, and `SolverError` where memory does not do.
    """
    classes = _Classes.of(problem)
    strategies: list[tuple[float, NDArray[np.int64]]] = []
    for target in targets_bytes:
        # The fastest within more memory is that within less, where it has no more.
        known = (one for one in strategies if one[0] <= target)
        strategies.append(next(known, None) or classes.fastest(target))
    return [strategy for _, strategy in strategies]


def _crossings(edges: Sequence[SearchEdge], of_group: NDArray[np.int64]) -> list[_Crossing]:
    """Returns the crossings between classes and within them."""
    tables = {id(edge.table): edge.table for edge in edges}
    counts = Counter(
        (int(of_group[edge.source]), int(of_group[edge.target]), id(edge.table)) for edge in edges
    )
    return [
        _Crossing(source, target, tables[table], count)
        for (source, target, table), count in counts.items()
    ]


def _add_edges(
    problem: _core.Problem, crossings: Sequence[_Crossing], rows: Sequence[NDArray[np.int64]]
) -> None:
    """Adds the crossings between classes, with those cells of their tables that rows use."""
    used = occurring(crossings, rows)
    for crossing in crossings:
        table, of_table = crossing.table, used[id(crossing.table)]
        cells = np.ix_(*of_table)
        added = problem.add_table(
            crossing.count * table.memory_bytes[cells],
            crossing.count * table.time_s[cells],
            table.count[cells],
        )
        row_of, column_of = places(of_table)
        problem.add_edge(
            crossing.source,
            crossing.target,
            added,
            row_of[table.rows[rows[crossing.source]]],
            column_of[table.columns[rows[crossing.target]]],
        )


def _within(table: EdgeTable, rows: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Returns bytes and seconds of a crossing between groups that choose the same row, (rows,)."""
    cells = table.rows[rows], table.columns[rows]
    memory, time = table.memory_bytes[cells], table.time_s[cells]
    there = np.arange(time.shape[1]) < table.count[cells][:, None]
    at = np.arange(len(rows)), np.where(there, time, np.inf).argmin(axis=1)
    return memory[at], time[at]
