"""The costs of a frontier's point by part, without its whole plan.

    memory = parameters + activations + rescheduled copies + fixed
    time   = compute + synchronisation + re-scheduling

Parameters with their gradients and optimizer state, activations, compute and synchronisation are
sums over groups; copies and re-scheduling are sums over edges (COSTS: TensorOpt §3.2, equations
for c_m and c_t); `fixed` depends on no choice. All points of a search are added up at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwise.answers.explain import choice_text
from shardwise.answers.strategy import choice_of
from shardwise.documents.frontier import PointMemory, PointTime, Split
from shardwise.search.search import Search

MOST_SPLITS = 4
"""Maximum splits named by a point; the others are counted."""


@dataclass(frozen=True)
class Outline:
    """The parts of a point: memory in bytes, time in seconds, and how groups are split.

    `splits` are the most common configurations with their numbers of groups, at most `MOST_SPLITS`;
    `other_splits` is the number of further ones.
    """

    memory: PointMemory
    time: PointTime
    splits: list[Split]
    other_splits: int


def outlines(search: Search) -> list[Outline]:
    """Returns the outline of each point of a search."""
    problem, choices = search.problem, search.solution.choices
    count = len(search.time_s)
    parameter, activation, copies = (np.zeros(count) for _ in range(3))
    synchronisation, rescheduling, compute = (np.zeros(count) for _ in range(3))
    for g, cost in enumerate(problem.costs):
        chosen = choices[:, g]
        parameter += cost.parameter_bytes[chosen]
        activation += cost.activation_bytes[chosen]
        compute += cost.compute_s[chosen]
        synchronisation += cost.communication_s[chosen]
    for e, edge in enumerate(problem.edges):
        at = (
            edge.table.rows[choices[:, edge.source]],
            edge.table.columns[choices[:, edge.target]],
            search.solution.edge_choices[:, e],
        )
        copies += edge.table.memory_bytes[at]
        rescheduling += edge.table.time_s[at]
    splits = _splits(search)
    return [
        Outline(
            PointMemory(
                parameter_bytes=round(float(parameter[p])),
                activation_bytes=round(float(activation[p])),
                rescheduled_bytes=round(float(copies[p])),
                fixed_bytes=round(problem.fixed_memory_bytes),
            ),
            PointTime(
                compute_s=float(compute[p]) + problem.fixed_time_s,
                synchronisation_s=float(synchronisation[p]),
                rescheduling_s=float(rescheduling[p]),
            ),
            *splits[p],
        )
        for p in range(count)
    ]


def _splits(search: Search) -> list[tuple[list[Split], int]]:
    """Returns each point's most common configurations, and the number of others."""
    numbers: dict[str, int] = {}
    columns = [_numbers(search, g, numbers) for g in range(len(search.problem.costs))]
    texts = list(numbers)
    rows = []
    for p in range(len(search.time_s)):
        counts = np.bincount([column[p] for column in columns], minlength=len(texts))
        order = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)].tolist()
        shown = [Split(texts[i], int(counts[i])) for i in order[:MOST_SPLITS]]
        rows.append((shown, max(len(order) - MOST_SPLITS, 0)))
    return rows


def _numbers(search: Search, group: int, numbers: dict[str, int]) -> NDArray[np.int64]:
    """Returns each point's number of this group's configuration; new texts are added to
    `numbers`."""
    axes = search.problem.context.mesh.axes
    chosen, inverse = np.unique(search.solution.choices[:, group], return_inverse=True)
    of_choice = []
    for k in chosen.tolist():
        choice = choice_of(search.problem, group, k)
        of_choice.append(numbers.setdefault(choice_text(choice, axes), len(numbers)))
    return np.array(of_choice, dtype=np.int64)[inverse.reshape(-1)]
