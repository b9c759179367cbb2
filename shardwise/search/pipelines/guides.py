"""Boundary layouts ("guides"): strategies of a whole model in which equal groups choose alike.

Groups with equal costs become one operator of the solver's problem, with their summed costs, and
likewise crossings between the same two classes. So a deep model is no more work than one layer. A
crossing between groups of one class depends on a single choice, so its fastest alternative is added
to the class's own costs.
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
"""The error (epsilon) of guides, among such strategies."""


@dataclass(frozen=True)
class _Crossing:
    """Crossings that share a table, between two classes of groups or within one."""

    source: int
    target: int
    table: EdgeTable
    count: int


@dataclass(frozen=True)
class _Classes:
    """The solver's problem with one operator per class of groups with equal costs.

    `rows` are the rows of the whole problem per choice of a class, `of_group` each group's class,
    (groups,).
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
        """Returns memory and rows, (groups,), of the fastest strategy within a memory, or else of
        one with the least memory.

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
    """Returns the fastest strategy within each memory, (groups,), in which equal groups choose
    alike, or else one with the least memory.

    Memories are of sums without the fixed part, and descend. Raises `Cancelled`, and `SolverError`
    if memory runs out.
    """
    classes = _Classes.of(problem)
    strategies: list[tuple[float, NDArray[np.int64]]] = []
    for target in targets_bytes:
        # The fastest within more memory is also the fastest within less if it fits there.
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
    """Adds the crossings between classes, with the used cells of their tables."""
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
