"""The cheapest strategy under given group and edge costs: one elimination."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwise import _core
from shardwise.cost.assemble import SearchProblem
from shardwise.cost.crossings import EdgeTable
from shardwise.cost.options import Progress
from shardwise.cost.part import Edge, Masks, Part
from shardwise.replay.owner_costs import OwnerCosts
from shardwise.search.solver_errors import solver_errors
from shardwise.sharding.layout import Floats


@dataclass(frozen=True)
class Cheapest:
    """A strategy, choices (groups,) and (edges,), and a lower bound on every strategy's cost."""

    bound: float
    choices: NDArray[np.uint32]
    edge_choices: NDArray[np.uint32]


def cheapest(
    problem: SearchProblem,
    costs: OwnerCosts,
    *,
    allowed: Masks | None = None,
    time_limit_s: float | None = None,
    memory_limit_bytes: int | None = None,
    threads: int = 0,
    progress: Progress | None = None,
) -> Cheapest:
    """Returns a strategy that minimises the costs, and the proven bound.

    `allowed` restricts the configurations. Among configurations with equal layouts only the
    cheapest is tried, since nothing else depends on the choice. Raises `Cancelled`, and
    `SolverError` if a limit is met.
    """
    part = _LeastProblem(problem, costs, range(len(problem.costs)), allowed)
    with solver_errors():
        bound, _, taken, _ = _core.least_time(
            part.core,
            time_limit_s=time_limit_s,
            memory_limit_bytes=memory_limit_bytes,
            threads=threads,
            progress=progress,
        )
    choices = np.array([part.rows[g][k] for g, k in enumerate(taken.tolist())])
    edge_choices = [
        part.tables[id(edge.table), id(costs.edges[e])].alternative(
            edge.table.cell(choices[edge.source], choices[edge.target])
        )
        for e, edge in enumerate(problem.edges)
    ]
    return Cheapest(
        bound + costs.constant, choices.astype(np.uint32), np.array(edge_choices, dtype=np.uint32)
    )


def least_of(
    problem: SearchProblem,
    costs: OwnerCosts,
    groups: Sequence[int],
    *,
    memory_limit_bytes: int | None = None,
    threads: int = 0,
) -> float:
    """Returns a lower bound on the cost of some groups and the crossings between them, without the
    constant.

    Raises `SolverError` if a limit is met.
    """
    part = _LeastProblem(problem, costs, groups, None)
    with solver_errors():
        bound, _, _, _ = _core.least_time(
            part.core, memory_limit_bytes=memory_limit_bytes, threads=threads
        )
    return float(bound)


class _LeastProblem:
    """The solver's problem for the cheapest strategy of some groups.

    `rows` are the allowed configurations per group, `tables` the tables of crossings by table and
    costs.
    """

    def __init__(
        self,
        problem: SearchProblem,
        costs: OwnerCosts,
        groups: Sequence[int],
        allowed: Masks | None,
    ) -> None:
        self.core = _core.Problem()
        self.rows: dict[int, NDArray[np.int64]] = {}
        self.tables: dict[Hashable, _Table] = {}
        ids: dict[Hashable, tuple[int, NDArray[np.int64]]] = {}
        number: dict[int, int] = {}
        for g in groups:
            group, of_group = problem.costs[g], costs.groups[g]
            mask = None if allowed is None else allowed[g]
            key = (id(group), id(of_group), id(mask))
            if key not in ids:
                kept = _least_of_each(of_group, group.alike, mask)
                ids[key] = (self.core.add_costs(np.zeros(len(kept)), of_group[kept]), kept)
            of_costs, self.rows[g] = ids[key]
            number[g] = self.core.add_operator(problem.patterns[g].group.name, of_costs)
        edges = [
            (e, edge)
            for e, edge in enumerate(problem.edges)
            if edge.source in number and edge.target in number
        ]
        used = {} if allowed is None else occurring([edge for _, edge in edges], self.rows)
        # Equal edges between equal groups have the same rows and columns.
        at: dict[Hashable, tuple[NDArray[np.uint32], NDArray[np.uint32]]] = {}
        for e, edge in edges:
            table = edge.table
            of_edge = (id(table), id(costs.edges[e]))
            if of_edge not in self.tables:
                self.tables[of_edge] = _Table.of(
                    self.core, table, costs.edges[e], used.get(id(table))
                )
            known = self.tables[of_edge]
            source, target = self.rows[edge.source], self.rows[edge.target]
            pair = known.number, id(source), id(target)
            if pair not in at:
                at[pair] = (
                    known.row_of[table.rows[source]],
                    known.column_of[table.columns[target]],
                )
            self.core.add_edge(number[edge.source], number[edge.target], known.number, *at[pair])


@dataclass(frozen=True)
class _Table:
    """A table of the solver's problem: its number, and its row for each row of the whole table.

    `costs` are those of the whole table's alternatives (R, C, A), `count` (R, C) their number.
    """

    number: int
    row_of: NDArray[np.uint32]
    column_of: NDArray[np.uint32]
    costs: Floats
    count: NDArray[np.uint8]

    @classmethod
    def of(cls, core: _core.Problem, table: EdgeTable, costs: Floats, used: Used | None) -> _Table:
        """Adds the least costs of the used rows and columns of a table."""
        count, every = table.count, np.broadcast_to(costs, table.kept.shape)
        row_of, column_of = (np.arange(length, dtype=np.uint32) for length in count.shape)
        some, counted = every, count
        if used is not None:
            cells = np.ix_(*used)
            some, counted = every[cells], count[cells]
            row_of, column_of = places(used)
        return cls(core.add_least_table(some, counted), row_of, column_of, every, count)

    def alternative(self, cell: tuple[int, int]) -> int:
        """Returns the cheapest alternative in a cell of the whole table."""
        return int(self.costs[cell][: self.count[cell]].argmin())


Used = tuple[NDArray[np.bool_], NDArray[np.bool_]]
"""The used rows and columns of a table."""

Rows = Sequence[NDArray[np.int64]] | Mapping[int, NDArray[np.int64]]


def occurring(edges: Sequence[Edge], rows: Rows) -> dict[int, Used]:
    """Returns the used rows and columns per table id; `rows` are each group's rows of the whole
    problem."""
    ends = {(id(edge.table), id(rows[edge.source]), id(rows[edge.target])): edge for edge in edges}
    used: dict[int, Used] = {}
    for edge in ends.values():
        table = edge.table
        if id(table) not in used:
            height, width = table.count.shape
            used[id(table)] = np.zeros(height, dtype=bool), np.zeros(width, dtype=bool)
        at_source, at_target = used[id(table)]
        at_source[table.rows[rows[edge.source]]] = True
        at_target[table.columns[rows[edge.target]]] = True
    return used


def places(used: Used) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Returns the positions of a table's used rows and columns among themselves."""
    at_source, at_target = used
    return np.cumsum(at_source, dtype=np.uint32) - 1, np.cumsum(at_target, dtype=np.uint32) - 1


def near(
    problem: SearchProblem,
    memory: OwnerCosts,
    time: OwnerCosts,
    target_bytes: float | None,
    *,
    epsilon: float,
    time_limit_s: float | None = None,
    memory_limit_bytes: int | None = None,
    work_limit: int | None = None,
    threads: int = 0,
    progress: Progress | None = None,
) -> tuple[NDArray[np.uint32], NDArray[np.uint32], Floats]:
    """Returns the frontier of two sums near a memory (None: everywhere): choices, alternatives,
    sums of memory.

    Shapes (points, groups), (points, edges) and (points,). Raises `Cancelled`, and `SolverError` if
    a limit is met before there is any point.
    """
    core = _core.Problem()
    ids: dict[Hashable, tuple[int, NDArray[np.int64]]] = {}
    rows: list[NDArray[np.int64]] = []
    for g, (pattern, group) in enumerate(zip(problem.patterns, problem.costs, strict=True)):
        of_memory, of_time = memory.groups[g], time.groups[g]
        key = (id(group), id(of_memory), id(of_time))
        if key not in ids:
            kept = _unbeaten(of_memory, of_time, group.alike)
            ids[key] = (core.add_costs(of_memory[kept], of_time[kept]), kept)
        number, kept = ids[key]
        core.add_operator(pattern.group.name, number)
        rows.append(kept)
    tables: dict[Hashable, int] = {}
    at: dict[Hashable, tuple[NDArray[np.uint32], NDArray[np.uint32]]] = {}
    for e, edge in enumerate(problem.edges):
        table, before, after = edge.table, rows[edge.source], rows[edge.target]
        key = (id(table), id(memory.edges[e]), id(time.edges[e]))
        if key not in tables:
            shape = table.kept.shape
            tables[key] = core.add_table(
                np.broadcast_to(memory.edges[e], shape).copy(),
                np.broadcast_to(time.edges[e], shape).copy(),
                table.count,
            )
        pair = id(table), id(before), id(after)
        if pair not in at:
            at[pair] = table.rows[before], table.columns[after]
        core.add_edge(edge.source, edge.target, tables[key], *at[pair])
    target = None if target_bytes is None else max(target_bytes - memory.constant, 0.0)
    with solver_errors():
        solved = _core.solve(
            core,
            epsilon=epsilon,
            memory_target_bytes=target,
            time_limit_s=time_limit_s,
            memory_limit_bytes=memory_limit_bytes,
            work_limit=work_limit,
            threads=threads,
            progress=progress,
        )
    choices = Part(core, tuple(rows)).whole(solved.choices)
    return choices, solved.edge_choices, solved.memory_bytes + memory.constant


def _unbeaten(memory: Floats, time: Floats, alike: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the rows that no row with the same number in `alike` beats in both."""
    order = np.lexsort((time, memory, alike))
    kept, number, least = [], -1, np.inf
    for row in order.tolist():
        if alike[row] != number:
            number, least = alike[row], np.inf
        if time[row] < least:
            kept.append(row)
            least = time[row]
    return np.array(kept, dtype=np.int64)


def _least_of_each(
    costs: Floats, alike: NDArray[np.int64], allowed: NDArray[np.bool_] | None
) -> NDArray[np.int64]:
    """Returns the cheapest (allowed) row per number in `alike`, by ascending number."""
    order = np.lexsort((costs, alike))
    if allowed is not None:
        order = order[allowed[order]]
    first = np.ones(len(order), dtype=bool)
    first[1:] = np.diff(alike[order]) > 0
    return order[first]
