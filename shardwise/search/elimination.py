"""The strategy that costs least under given costs of groups and edges: one elimination."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwise import _core
from shardwise.cost.assemble import SearchProblem
from shardwise.cost.options import Progress
from shardwise.cost.part import Part
from shardwise.replay.linear import OwnerCosts
from shardwise.sharding.layout import Floats


@dataclass(frozen=True)
class Cheapest:
    """A strategy, choices (groups,) and (edges,), and a bound that no strategy costs less than."""

    bound: float
    choices: NDArray[np.uint32]
    edge_choices: NDArray[np.uint32]


def cheapest(
    problem: SearchProblem,
    costs: OwnerCosts,
    *,
    time_limit_s: float | None = None,
    memory_limit_bytes: int | None = None,
    threads: int = 0,
    progress: Progress | None = None,
) -> Cheapest:
    """Returns a strategy that minimises the costs, and the proven bound.

    Of configurations with equal layouts only the cheapest is tried: nothing else depends on which
    one it is. Raises what `_core.least_time` does.
    """
    core = _core.Problem()
    ids: dict[Hashable, tuple[int, NDArray[np.int64]]] = {}
    rows: list[NDArray[np.int64]] = []
    for g, (pattern, group) in enumerate(zip(problem.patterns, problem.costs, strict=True)):
        of_group = costs.groups[g]
        key = (id(group), id(of_group))
        if key not in ids:
            kept = _least_of_each(of_group, group.alike)
            ids[key] = (core.add_costs(np.zeros(len(kept)), of_group[kept]), kept)
        number, kept = ids[key]
        core.add_operator(pattern.group.name, number)
        rows.append(kept)
    tables: dict[Hashable, tuple[int, Floats]] = {}
    of_edge: list[Floats] = []
    for e, edge in enumerate(problem.edges):
        table = edge.table
        key = (id(table), id(costs.edges[e]))
        if key not in tables:
            exists = np.arange(table.kept.shape[2]) < table.count[..., None]
            total = np.where(exists, np.broadcast_to(costs.edges[e], table.kept.shape), np.inf)
            least = total.min(axis=2)[..., None]
            nothing, one = np.zeros(least.shape), np.ones(table.count.shape, dtype=np.uint8)
            tables[key] = (core.add_table(nothing, least, one), total)
        number, total = tables[key]
        of_edge.append(total)
        core.add_edge(
            edge.source,
            edge.target,
            number,
            table.rows[rows[edge.source]],
            table.columns[rows[edge.target]],
        )
    bound, taken, _ = _core.least_time(
        core,
        time_limit_s=time_limit_s,
        memory_limit_bytes=memory_limit_bytes,
        threads=threads,
        progress=progress,
    )
    choices = np.array([kept[k] for kept, k in zip(rows, taken.tolist(), strict=True)])
    edge_choices = [
        int(total[edge.table.cell(choices[edge.source], choices[edge.target])].argmin())
        for edge, total in zip(problem.edges, of_edge, strict=True)
    ]
    return Cheapest(
        bound + costs.constant, choices.astype(np.uint32), np.array(edge_choices, dtype=np.uint32)
    )


def near(
    problem: SearchProblem,
    memory: OwnerCosts,
    time: OwnerCosts,
    target_bytes: float,
    *,
    epsilon: float,
    time_limit_s: float | None = None,
    memory_limit_bytes: int | None = None,
    threads: int = 0,
    progress: Progress | None = None,
) -> tuple[NDArray[np.uint32], NDArray[np.uint32], Floats]:
    """Returns the frontier of two sums near a memory: choices, alternatives and sums of memory.

    Shapes (points, groups), (points, edges) and (points,). Raises what `_core.solve` does.
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
    for e, edge in enumerate(problem.edges):
        table = edge.table
        key = (id(table), id(memory.edges[e]), id(time.edges[e]))
        if key not in tables:
            shape = table.kept.shape
            tables[key] = core.add_table(
                np.broadcast_to(memory.edges[e], shape).copy(),
                np.broadcast_to(time.edges[e], shape).copy(),
                table.count,
            )
        core.add_edge(
            edge.source,
            edge.target,
            tables[key],
            table.rows[rows[edge.source]],
            table.columns[rows[edge.target]],
        )
    solved = _core.solve(
        core,
        epsilon=epsilon,
        memory_target_bytes=max(target_bytes - memory.constant, 0.0),
        time_limit_s=time_limit_s,
        memory_limit_bytes=memory_limit_bytes,
        threads=threads,
        progress=progress,
    )
    choices = Part(core, tuple(rows)).whole(solved.choices)
    return choices, solved.edge_choices, solved.memory_bytes + memory.constant


def _unbeaten(memory: Floats, time: Floats, alike: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the rows that none of the same number in `alike` beats in both."""
    order = np.lexsort((time, memory, alike))
    kept, number, least = [], -1, np.inf
    for row in order.tolist():
        if alike[row] != number:
            number, least = alike[row], np.inf
        if time[row] < least:
            kept.append(row)
            least = time[row]
    return np.array(kept, dtype=np.int64)


def _least_of_each(costs: Floats, alike: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the cheapest row of each number in `alike`, ascending in that number."""
    order = np.lexsort((costs, alike))
    first = np.ones(len(order), dtype=bool)
    first[1:] = np.diff(alike[order]) > 0
    return order[first]
