"""The price of a strategy that another system chose, on our cost model (TensorOpt Eq. 3).

    m = Σ groups m(o, s) + Σ edges m(e) + fixed        t likewise

A peer names a configuration for every group. What an edge keeps for backward (tensor reuse) most
peers do not know as a choice, so every edge takes its fastest alternative, the smaller one among
equals; with `smallest` it takes the smallest, the faster one among equals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shardwise.cost.assemble import SearchProblem
from shardwise.documents.plan import PlannedPlace
from shardwise.replay.replay import Replayer
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
class Step:
    """A replayed step: micro-batches, peak, time, and what communication adds to it, which is not
    known of a pipeline."""

    micro_batches: int
    peak_bytes: float
    time_s: float
    exposed_s: float | None


@dataclass(frozen=True)
class Piped:
    """What a pipeline has beside its step: a schedule, the share of the step in which a device
    waits, in the mean over ranks, the peak of each rank, and how many stages a rank has."""

    schedule: str
    idle: float
    peak_bytes: tuple[float, ...]
    stages_per_rank: int = 1


@dataclass(frozen=True)
class Point:
    """A strategy and its price: `choices` a row of every group's costs, shape (groups,).

    `edge_choices` is the alternative of every edge, shape (edges,). `label` says which of a peer's
    strategies it is, where it has several. `step` is there where it was replayed, and ranks it
    unless points are ranked `by_sum`.
    `places` are there where devices are of several kinds. With `piped` it is a pipeline: sums are
    those of its slowest rank, and choices those of the problem on the devices of one rank.
    """

    memory_bytes: float
    time_s: float
    breakdown: Breakdown
    choices: NDArray[np.uint32]
    edge_choices: NDArray[np.uint32]
    label: str = ""
    step: Step | None = None
    by_sum: bool = False
    places: tuple[PlannedPlace, ...] = ()
    piped: Piped | None = None

    @property
    def ranking_bytes(self) -> float:
        """What has to fit: the replayed peak, or the sum."""
        return self.memory_bytes if self.step is None or self.by_sum else self.step.peak_bytes

    @property
    def ranking_s(self) -> float:
        """The time that ranks it: the replayed one, or the sum."""
        return self.time_s if self.step is None or self.by_sum else self.step.time_s

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
    return point_of(
        problem, chosen, problem.alternatives(chosen[None, :], smallest=smallest)[0], label
    )


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


def steps_of(
    replayer: Replayer,
    choices: Sequence[NDArray[np.uint32]],
    edge_choices: Sequence[NDArray[np.uint32]],
) -> list[Step]:
    """Returns the replayed steps of strategies of a problem, each (groups,) and (edges,)."""
    if not choices:
        return []
    replayed = replayer.replay(np.stack(choices), np.stack(edge_choices))
    micro_batches = replayer.problem.context.micro_batches
    figures = (replayed.peak_bytes, replayed.time_s, replayed.exposed_s)
    rows = zip(*(of.tolist() for of in figures), strict=True)
    return [Step(micro_batches, *row) for row in rows]


def with_steps(points: Sequence[Point], replayer: Replayer, *, by_sum: bool = False) -> list[Point]:
    """Returns points of the replayer's problem with their replayed steps; `by_sum` says that these
    do not rank them."""
    steps = steps_of(replayer, [p.choices for p in points], [p.edge_choices for p in points])
    pairs = zip(points, steps, strict=True)
    return [replace(point, step=step, by_sum=by_sum) for point, step in pairs]


def points_of(search: Search) -> list[Point]:
    """Returns the points of a solved search."""
    solution = search.solution
    return [
        point_of(search.problem, choices, edges)
        for choices, edges in zip(solution.choices, solution.edge_choices, strict=True)
    ]
