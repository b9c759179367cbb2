"""The solver alone on synthetic problems: median of five, no models and no hardware.

`chain`: 400 operators in a row whose choices trade memory against time. `blocks`: 32 identical
layers of six operators with two residual edges each, K choices on wide operators and half of it
on narrow ones; tables are shared by all layers, as they are for captured models.
"""

from __future__ import annotations

import resource
import statistics
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise import _core

REPEATS = 5
EPSILON = 0.01
LAYERS = 32
CHAIN = (400, 8)
WIDTHS = (80, 175)


def run() -> dict[str, Any]:
    """Every case, printed as a table and answered as data (seconds, GiB)."""
    cases = [("chain", *CHAIN, chain(*CHAIN), None)]
    for width in WIDTHS:
        problem = blocks(LAYERS, width)
        cases.append((f"blocks K={width}", 6 * LAYERS + 1, width, problem, None))
        cases.append((f"blocks K={width} near", 6 * LAYERS + 1, width, problem, 0.5))
    print(
        f"{'problem':18} {'operators':>9} {'K max':>5} {'points':>6} {'epsilon':>8} "
        f"{'status':>14} {'median s':>9}"
    )
    rows = [_measured(*case) for case in cases]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"peak memory of the process: {peak:.2f} GiB")
    return {"rows": rows, "peak_rss_gib": peak, "repeats": REPEATS, "epsilon_asked": EPSILON}


def _measured(
    name: str, operators: int, width: int, problem: _core.Problem, share: float | None
) -> dict[str, Any]:
    target = None
    if share is not None:
        ends = _core.solve(problem, epsilon=10.0).memory_bytes
        target = float(ends[0] + share * (ends[-1] - ends[0]))
    seconds = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        solution = _core.solve(problem, epsilon=EPSILON, memory_target_bytes=target)
        seconds.append(time.perf_counter() - started)
    row = {
        "problem": name,
        "operators": operators,
        "choices_max": width,
        "points": len(solution.time_s),
        "epsilon": solution.epsilon,
        "status": solution.status,
        "solve_s": statistics.median(seconds),
        "candidates": solution.statistics["candidates"],
        "memory_target_bytes": target,
    }
    print(
        f"{name:18} {operators:9} {width:5} {row['points']:6} {solution.epsilon:8.2%} "
        f"{solution.status:>14} {row['solve_s']:9.2f}"
    )
    return row


def _costs(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Memory and time (first axis) that trade against each other, with noise."""
    memory = rng.uniform(1.0, 9.0, shape)
    return np.stack([memory, 10.0 - memory + rng.exponential(4.0, shape)])


def _layouts(rng: np.random.Generator, rows: int, columns: int) -> NDArray[np.float64]:
    """Time to move between layouts that lie on a plane: it obeys the triangle inequality."""
    here, there = rng.uniform(0.0, 9.0, (rows, 1, 2)), rng.uniform(0.0, 9.0, (1, columns, 2))
    distance = np.linalg.norm(here - there, axis=2)
    return np.stack([np.zeros_like(distance), distance])


def _add_table(problem: _core.Problem, costs: NDArray[np.float64]) -> int:
    memory, time_s = costs[0][..., None], costs[1][..., None]
    return problem.add_table(memory, time_s, np.ones(costs.shape[1:], dtype=np.uint8))


def chain(operators: int, choices: int) -> _core.Problem:
    """A chain of operators that are all different."""
    rng = np.random.default_rng(0)
    problem = _core.Problem()
    every = np.arange(choices, dtype=np.uint32)
    for o in range(operators):
        problem.add_operator(f"o{o}", problem.add_costs(*_costs(rng, (choices,))))
    for o in range(1, operators):
        table = _add_table(problem, _layouts(rng, choices, choices))
        problem.add_edge(o - 1, o, table, every, every)
    return problem


def blocks(layers: int, width: int) -> _core.Problem:
    """Identical layers with residual edges."""
    rng = np.random.default_rng(0)
    problem = _core.Problem()
    widths = [width // 2, width, width, width // 2, width, width]
    costs = [problem.add_costs(*_costs(rng, (k,))) for k in widths]
    inside = [(0, 1), (1, 2), (2, 3), (0, 3), (3, 4), (4, 5), (5, 6), (3, 6)]
    tables = {
        (a, b): _add_table(problem, _layouts(rng, widths[a], widths[b % 6])) for a, b in inside
    }
    for layer in range(layers):
        for place, cost in enumerate(costs):
            problem.add_operator(f"layer {layer}.{place}", cost)
    problem.add_operator("head", costs[0])
    for layer in range(layers):
        for (a, b), table in tables.items():
            rows = np.arange(widths[a], dtype=np.uint32)
            columns = np.arange(widths[b % 6], dtype=np.uint32)
            problem.add_edge(6 * layer + a, 6 * layer + b, table, rows, columns)
    return problem


if __name__ == "__main__":
    run()
