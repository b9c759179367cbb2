"""The price of a strategy that another system chose, on our cost model (TensorOpt Eq. 3).

    m = Σ groups m(o, s) + Σ edges m(e) + fixed        t likewise

A peer names a configuration for every group. What an edge keeps for backward (tensor reuse) most
peers do not know as a choice, so every edge takes its fastest alternative, the smaller one among
equals; with `smallest` it takes the smallest, the faster one among equals.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shardwise.cost.assemble import SearchProblem
from shardwise.cost.crossings import EdgeTable
from shardwise.search.search import Search


@dataclass(frozen=True)
class Breakdown:
    """What the cost of a strategy consists of, in bytes and seconds."""

    parameter_bytes: float
    activation_bytes: float
    edge_bytes: float
    fixed_bytes: float
    compute_s: float
    synchronisation_s: float
    rescheduling_s: float

    @property
    def memory_bytes(self) -> float:
        return self.parameter_bytes + self.activation_bytes + self.edge_bytes + self.fixed_bytes

    @property
    def time_s(self) -> float:
        return self.compute_s + self.synchronisation_s + self.rescheduling_s


@dataclass(frozen=True)
class Point:
    """A strategy and its price: `choices` a row of every group's costs, shape (groups,).

    `edge_choices` is the alternative of every edge, shape (edges,). `label` says which of a peer's
    strategies it is, where it has several.
    """

    memory_bytes: float
    time_s: float
    breakdown: Breakdown
    choices: NDArray[np.uint32]
    edge_choices: NDArray[np.uint32]
    label: str = ""

    @property
    def compute_s(self) -> float:
        return self.breakdown.compute_s

    @property
    def communication_s(self) -> float:
        return self.time_s - self.breakdown.compute_s


def evaluate(
    problem: SearchProblem, choices: ArrayLike, *, smallest: bool = False, label: str = ""
) -> Point:
    """Returns the point of the strategy in which group g takes configuration `choices[g]`."""
    chosen = np.asarray(choices, dtype=np.uint32)
    taken = [
        _alternative(
            edge.table, edge.table.cell(chosen[edge.source], chosen[edge.target]), smallest
        )
        for edge in problem.edges
    ]
    return point_of(problem, chosen, np.array(taken, dtype=np.uint32), label)


def point_of(
    problem: SearchProblem,
    choices: NDArray[np.uint32],
    edge_choices: NDArray[np.uint32],
    label: str = "",
) -> Point:
    """Returns the point of a strategy whose edges are chosen too."""
    pairs = [(cost, int(k)) for cost, k in zip(problem.costs, choices, strict=True)]
    memory = problem.fixed_memory_bytes + sum(float(c.memory_bytes[k]) for c, k in pairs)
    time = problem.fixed_time_s + sum(float(c.time_s[k]) for c, k in pairs)
    edge_bytes = edge_s = 0.0
    for edge, alternative in zip(problem.edges, edge_choices, strict=True):
        cell = edge.table.cell(choices[edge.source], choices[edge.target])
        edge_bytes += float(edge.table.memory_bytes[cell][alternative])
        edge_s += float(edge.table.time_s[cell][alternative])
    breakdown = Breakdown(
        sum(float(c.parameter_bytes[k]) for c, k in pairs),
        sum(float(c.activation_bytes[k]) for c, k in pairs),
        edge_bytes,
        problem.fixed_memory_bytes,
        problem.fixed_time_s + sum(float(c.compute_s[k]) for c, k in pairs),
        sum(float(c.communication_s[k]) for c, k in pairs),
        edge_s,
    )
    return Point(memory + edge_bytes, time + edge_s, breakdown, choices, edge_choices, label)


def points_of(search: Search) -> list[Point]:
    """Returns the points of a solved search."""
    solution = search.solution
    return [
        point_of(search.problem, choices, edges)
        for choices, edges in zip(solution.choices, solution.edge_choices, strict=True)
    ]


def _alternative(table: EdgeTable, cell: tuple[int, int], smallest: bool) -> int:
    count = int(table.count[cell])
    memory, time = table.memory_bytes[cell][:count], table.time_s[cell][:count]
    first, second = (memory, time) if smallest else (time, memory)
    return int(np.lexsort((second, first))[0])
