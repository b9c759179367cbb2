"""Next best choices: each group's best other split, everything else unchanged.

    Δt(k') = t(g, k') - t(g, k) + Σ over edges at g of [t(e, k') - t(e, k)]

for choice k' of group g in place of k, and Δm likewise; an edge takes its fastest alternative. The
next best is the k' with the least Δt.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwise.cost.crossings import EdgeTable
from shardwise.search.search import Search
from shardwise.sharding.layout import Floats


@dataclass(frozen=True)
class NextBest:
    """Another choice of a group, and the change in seconds and bytes."""

    choice: int
    time_s: float
    memory_bytes: float


def next_best(search: Search, point: int) -> list[NextBest | None]:
    """Returns each group's best other choice at a point, or None."""
    problem = search.problem
    chosen = search.solution.choices[point]
    taken = search.solution.edge_choices[point]
    times = [cost.time_s.copy() for cost in problem.costs]
    memories = [cost.memory_bytes.copy() for cost in problem.costs]
    now = [(float(t[k]), float(m[k])) for t, m, k in zip(times, memories, chosen, strict=True)]
    known: dict[tuple[int, bool, int], tuple[Floats, Floats]] = {}
    for e, edge in enumerate(problem.edges):
        table = edge.table
        row, column = table.cell(int(chosen[edge.source]), int(chosen[edge.target]))
        at = (row, column, int(taken[e]))
        for group, of_target, fixed in ((edge.source, False, column), (edge.target, True, row)):
            # Equal layers share a table.
            key = (id(table), of_target, fixed)
            if key not in known:
                free = (fixed, table.columns) if of_target else (table.rows, fixed)
                known[key] = _fastest(table, free)
            time, memory = known[key]
            times[group] += time
            memories[group] += memory
            t, m = now[group]
            now[group] = (t + float(table.time_s[at]), m + float(table.memory_bytes[at]))
    return [
        _best_other(t, m, int(k), here)
        for t, m, k, here in zip(times, memories, chosen, now, strict=True)
    ]


def _fastest(table: EdgeTable, index: tuple[object, object]) -> tuple[Floats, Floats]:
    """Returns time and memory of the fastest alternative for every choice of the other end."""
    time, memory = table.time_s[index], table.memory_bytes[index]  # type: ignore[index]
    exists = np.arange(time.shape[-1]) < table.count[index][..., None]  # type: ignore[index]
    place = np.where(exists, time, np.inf).argmin(axis=-1)[..., None]
    return (
        np.take_along_axis(time, place, axis=-1)[..., 0],
        np.take_along_axis(memory, place, axis=-1)[..., 0],
    )


def _best_other(
    times: Floats, memories: Floats, chosen: int, now: tuple[float, float]
) -> NextBest | None:
    if len(times) < 2:
        return None
    others = times.copy()
    others[chosen] = np.inf
    k = int(np.argmin(others))
    return NextBest(k, float(times[k]) - now[0], float(memories[k]) - now[1])
