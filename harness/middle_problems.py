"""Numbered problems of 30 to 60 operators with 8 to 16 choices, as `shardwise.problem/1` documents.

Too large for brute force, small enough for an integer program. Choices trade memory for time;
most edges cost the time between layouts that lie on a plane, as re-scheduling does, some have
memory or several alternatives per cell.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

FAMILIES = ("chain", "series-parallel", "treewidth 3")
Cost = dict[str, float]
Pair = tuple[int, int]


@dataclass(frozen=True)
class Middle:
    """What determines a problem; `whole` rounds memory, so that frontiers have ties."""

    family: str
    operators: int
    choices: tuple[int, int]
    whole: bool
    seed: int


def problem(of: Middle) -> dict[str, Any]:
    """The problem's document."""
    rng = np.random.default_rng([FAMILIES.index(of.family), of.operators, of.seed])
    operators, whole = of.operators, of.whole
    choices = rng.integers(of.choices[0], of.choices[1] + 1, operators)
    names = [f"o{number}" for number in rng.permutation(operators)]
    edges = []
    for at, (a, b) in enumerate(pairs(of.family, operators, rng)):
        if rng.random() < 0.5:
            a, b = b, a
        cells = _cells(rng, choices[a], choices[b], at % 5, whole=whole)
        edges.append({"source": names[a], "target": names[b], "choices": cells})
    return {
        "schema": "shardwise.problem/1",
        "operators": [
            {"name": name, "choices": _choices(rng, count, whole=whole)}
            for name, count in zip(names, choices, strict=True)
        ],
        "edges": edges,
    }


def pairs(family: str, operators: int, rng: np.random.Generator) -> list[Pair]:
    """Which operators are joined."""
    chain = [(o - 1, o) for o in range(1, operators)]
    if family == "chain":
        return chain
    if family == "series-parallel":
        return _series_parallel(operators, rng)
    # A band of width 3 with gaps: every operator with the three before it, the last one always.
    near = [(o - d, o) for o in range(operators) for d in (2, 3) if o >= d]
    return chain + [pair for pair in near if rng.random() < 0.3]


def _series_parallel(operators: int, rng: np.random.Generator) -> list[Pair]:
    """Blocks in a row, each an edge that is split and doubled again and again."""
    edges: list[Pair] = []
    here = 0
    fresh = 1
    while fresh < operators:
        block = [(here, fresh)]
        here, fresh = fresh, fresh + 1
        for _ in range(int(rng.integers(0, 5))):
            if fresh == operators:
                break
            at = int(rng.integers(len(block)))
            a, b = block[at]
            if rng.random() < 0.5:
                del block[at]
            block += [(a, fresh), (fresh, b)]
            fresh += 1
        edges += block
    return edges


def _cost(memory: float, time: float) -> Cost:
    return {"memory_bytes": float(memory), "time_s": float(time)}


def _choices(rng: np.random.Generator, count: int, *, whole: bool) -> list[Cost]:
    memory = rng.uniform(1, 40, count)
    time = 40 / memory + rng.exponential(10, count)
    return [_cost(m, t) for m, t in zip(memory.round() if whole else memory, time, strict=True)]


def _cells(
    rng: np.random.Generator, rows: int, columns: int, kind: int, *, whole: bool
) -> list[list[list[Cost]]]:
    here, there = rng.uniform(0, 1, (rows, 1, 2)), rng.uniform(0, 1, (1, columns, 2))
    time: NDArray[np.float64] = 3 * np.linalg.norm(here - there, axis=2)
    memory = np.zeros_like(time)
    if kind == 3:
        memory = rng.uniform(0, 4, time.shape) * (rng.random(time.shape) < 0.3)
    if whole:
        memory = memory.round()
    cells = [[[_cost(memory[i, j], time[i, j])] for j in range(columns)] for i in range(rows)]
    if kind == 4:
        # Tensor reuse: keep a copy for 3 bytes more and save half the time.
        for row in cells:
            for cell in row:
                cell.append(_cost(cell[0]["memory_bytes"] + 3, cell[0]["time_s"] / 2))
    return cells
