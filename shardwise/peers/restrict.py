"""A search problem with fewer configurations: the spaces of other systems are parts of ours.

Costs are those of the whole problem, by row; whatever is found in a part is a strategy of the
whole, with the same price.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic

import numpy as np
from numpy.typing import NDArray

from shardwise import _core
from shardwise.cost.assemble import SearchProblem
from shardwise.cost.crossings import EdgeTable
from shardwise.cost.options import Options, Progress
from shardwise.errors import Cancelled, SolverError

LEAST_TIME_EPSILON = 1e-6
"""How near the fastest strategy is found: a millionth takes seconds, exactness minutes."""

Masks = Sequence[NDArray[np.bool_]]
"""Per group which of its configurations are allowed, each of shape (K,)."""


@dataclass(frozen=True)
class Restricted:
    """The solver's problem, and per group the rows of the whole that its choices refer to."""

    problem: _core.Problem
    rows: tuple[NDArray[np.int64], ...]

    def choices(self, solution: _core.Solution, point: int) -> NDArray[np.uint32]:
        """Returns the rows of the whole that a point of the part takes, shape (groups,)."""
        taken = solution.choices[point].tolist()
        chosen = [int(rows[k]) for rows, k in zip(self.rows, taken, strict=True)]
        return np.array(chosen, dtype=np.uint32)


def everything(problem: SearchProblem) -> list[NDArray[np.bool_]]:
    """Returns masks that allow every configuration."""
    return [np.ones(len(cost.time_s), dtype=bool) for cost in problem.costs]


def restrict(problem: SearchProblem, allowed: Masks, *, time_only: bool = False) -> Restricted:
    """Returns the problem in which group g takes one of the configurations that `allowed[g]` marks.

    With `time_only` memory counts nothing: the frontier is the one fastest strategy. Raises
    `ValueError` where a group has none left.
    """
    part = _core.Problem()
    rows = tuple(np.flatnonzero(mask) for mask in allowed)
    costs: dict[tuple[int, bytes], int] = {}
    for pattern, cost, kept in zip(problem.patterns, problem.costs, rows, strict=True):
        if not len(kept):
            raise ValueError(f"no configuration is left of {pattern.group.name}")
        key = (id(cost), kept.tobytes())
        if key not in costs:
            memory = cost.memory_bytes[kept]
            costs[key] = part.add_costs(_counted(memory, time_only), cost.time_s[kept])
        part.add_operator(pattern.group.name, costs[key])
    tables: dict[int, int] = {}
    for edge in problem.edges:
        table = edge.table
        if id(table) not in tables:
            tables[id(table)] = _add_table(part, table, time_only)
        part.add_edge(
            edge.source,
            edge.target,
            tables[id(table)],
            table.rows[rows[edge.source]],
            table.columns[rows[edge.target]],
        )
    return Restricted(part, rows)


def _counted(memory: NDArray[np.float64], time_only: bool) -> NDArray[np.float64]:
    return np.zeros_like(memory) if time_only else memory


def _add_table(part: _core.Problem, table: EdgeTable, time_only: bool) -> int:
    return part.add_table(_counted(table.memory_bytes, time_only), table.time_s, table.count)


def least_time(
    problem: SearchProblem, allowed: Masks, options: Options, progress: Progress
) -> tuple[NDArray[np.uint32], float]:
    """Returns the rows of the fastest strategy among the allowed ones, memory left out of account.

    Also returns the proven error in time: `LEAST_TIME_EPSILON` at most, unless a limit of the
    options ended the search before (infinite where nothing is proven). Raises `SolverError` and
    `Cancelled` as `solve` does.
    """
    part = restrict(problem, allowed, time_only=True)
    solution = solve(part.problem, options, progress, epsilon=LEAST_TIME_EPSILON)
    return part.choices(solution, -1), float(solution.epsilon)


def solve(
    problem: _core.Problem, options: Options, progress: Progress, *, epsilon: float
) -> _core.Solution:
    """Runs the solver under the options' limits.

    Raises `SolverError` when a limit is met before there is any answer, `Cancelled` when
    `progress` returned False.
    """
    started = monotonic()
    try:
        solution = _core.solve(
            problem,
            epsilon=epsilon,
            time_limit_s=options.time_limit_s,
            memory_limit_bytes=options.search_memory_bytes,
            threads=options.threads,
            progress=progress,
        )
    except _core.Cancelled:
        raise Cancelled from None
    except (RuntimeError, TimeoutError) as error:
        raise SolverError(f"{error} after {monotonic() - started:.1f} s") from None
    if solution.status == "cancelled":
        raise Cancelled
    return solution
