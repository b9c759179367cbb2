"""A search problem with fewer configurations: the spaces of other systems are parts of ours.

Costs are those of the whole problem, by row; whatever is found in a part is a strategy of the
whole, with the same price.
"""

from __future__ import annotations

from time import monotonic

import numpy as np
from numpy.typing import NDArray

from shardwise import _core
from shardwise.cost.assemble import SearchProblem
from shardwise.cost.options import Options, Progress
from shardwise.cost.part import Masks, Part, part_of
from shardwise.errors import Cancelled, SolverError

LEAST_TIME_EPSILON = 1e-6
"""How near the fastest strategy is found: a millionth takes seconds, exactness minutes."""


def everything(problem: SearchProblem) -> list[NDArray[np.bool_]]:
    """Returns masks that allow every configuration."""
    return [np.ones(len(cost.time_s), dtype=bool) for cost in problem.costs]


def restrict(problem: SearchProblem, allowed: Masks, *, time_only: bool = False) -> Part:
    """Returns the part of a problem in which group g takes one of the configurations that
    `allowed[g]` marks; as `part_of`."""
    return part_of(problem.patterns, problem.costs, problem.edges, allowed, time_only=time_only)


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
    return part.whole(solution.choices)[-1], float(solution.epsilon)


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
