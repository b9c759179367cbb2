"""What a point of a frontier is made of, without spelling its plan out.

    memory = parameters + activations + rescheduled copies + fixed
    time   = compute + synchronisation + re-scheduling

Parameters with their gradients and optimizer state, activations, compute and synchronisation are
sums over groups; copies and re-scheduling are sums over edges (COSTS: TensorOpt §3.2, equations
for c_m and c_t); `fixed` belongs to no choice. All points of a search are added up at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.advise.explain import choice_text
from shardwise.advise.search import Search

MOST_SPLITS = 4
"""Splits that a point names; the others are counted."""


def outlines(found: Search) -> list[dict[str, Any]]:
    """Per point of a search: `memory` in bytes, `time` in seconds, and `splits`.

    `splits` are the commonest configurations with how many groups have each, at most
    `MOST_SPLITS`; `other_splits` is how many further ones there are.
    """
    problem, choices = found.problem, found.solution.choices
    count = len(found.time_s)
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
            found.solution.edge_choices[:, e],
        )
        copies += edge.table.memory_bytes[at]
        rescheduling += edge.table.time_s[at]
    splits = _splits(found)
    return [
        {
            "memory": {
                "parameter_bytes": round(float(parameter[p])),
                "activation_bytes": round(float(activation[p])),
                "rescheduled_bytes": round(float(copies[p])),
                "fixed_bytes": round(problem.fixed_memory_bytes),
            },
            "time": {
                "compute_s": float(compute[p]) + problem.fixed_time_s,
                "synchronisation_s": float(synchronisation[p]),
                "rescheduling_s": float(rescheduling[p]),
            },
            **splits[p],
        }
        for p in range(count)
    ]


def _splits(found: Search) -> list[dict[str, Any]]:
    """Per point, how many groups are configured how."""
    known: dict[str, int] = {}
    columns = [_texts(found, g, known) for g in range(len(found.problem.costs))]
    names = list(known)
    answers = []
    for p in range(len(found.time_s)):
        counts = np.bincount([column[p] for column in columns], minlength=len(names))
        order = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)].tolist()
        shown = [{"split": names[i], "groups": int(counts[i])} for i in order[:MOST_SPLITS]]
        answers.append({"splits": shown, "other_splits": max(len(order) - MOST_SPLITS, 0)})
    return answers


def _texts(found: Search, group: int, known: dict[str, int]) -> NDArray[np.int64]:
    """Per point, the number in `known` of this group's configuration as text."""
    mesh = found.problem.context.mesh.axes
    axes = [{"name": axis.name, "size": axis.size, "level": axis.level} for axis in mesh]
    cost, variables = found.problem.costs[group], found.problem.patterns[group].group.variables
    chosen, inverse = np.unique(found.solution.choices[:, group], return_inverse=True)
    numbers = []
    for k in chosen.tolist():
        split = {
            axis.name: variables[v] if v >= 0 else None
            for axis, v in zip(mesh, cost.assignment[k].tolist(), strict=True)
        }
        shared = int(cost.zero_axes[k])
        choice = {
            "split": split,
            "zero": int(cost.zero[k]),
            "zero_axes": [axis.name for a, axis in enumerate(mesh) if shared >> a & 1],
            "recompute": bool(cost.recompute[k]),
        }
        numbers.append(known.setdefault(choice_text(choice, axes), len(known)))
    return np.array(numbers, dtype=np.int64)[inverse.reshape(-1)]
