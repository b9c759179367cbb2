"""Data parallelism: the batch over all mesh axes wherever there is a batch (TensorOpt §2.2).

Every device holds all parameters and works on its share of the samples; gradients are summed by
one all_reduce each. A group that no sample runs through (a position table) is computed in full by
every device; a group whose batch cannot be cut in so many shares takes the most that it can.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwise.advise.assemble import SearchProblem
from shardwise.advise.compare.evaluate import Point, evaluate
from shardwise.advise.compare.names import NamedDimensions, named_dimensions
from shardwise.advise.search import Search
from shardwise.advise.space import NONE


@dataclass(frozen=True)
class DataParallel:
    """The rows of data parallelism, and the names of the groups that it does not split evenly.

    `whole` are the groups without a batch, `partly` those split among fewer than all devices.
    """

    choices: NDArray[np.uint32]
    whole: tuple[str, ...]
    partly: tuple[str, ...]


def data_parallel(found: Search) -> Point:
    """The point of data parallelism on the search's mesh.

    `.memory_bytes`, `.time_s`, `.compute_s`, `.communication_s`, `.choices`; whether it fits is
    `point.memory_bytes <= found.limit_bytes`.
    """
    return evaluate(found.problem, data_parallel_rows(found.problem).choices)


def data_parallel_over_mini_time(found: Search) -> float | None:
    """Iteration time of data parallelism ÷ the shortest that fits the limit (TensorOpt Table 4).

    None where nothing fits. Data parallelism itself need not fit.
    """
    fastest = found.fastest_within(found.limit_bytes)
    return None if fastest is None else data_parallel(found).time_s / float(found.time_s[fastest])


def data_parallel_rows(
    problem: SearchProblem, names: NamedDimensions | None = None
) -> DataParallel:
    """Per group the row that splits the batch and nothing else into the most shares."""
    names = names or named_dimensions(problem)
    sizes = problem.context.mesh.sizes
    choices: list[int] = []
    whole: list[str] = []
    partly: list[str] = []
    groups = zip(problem.coarsened.groups, problem.costs, names.samples, strict=True)
    for group, cost, samples in groups:
        best, most = 0, 1
        for variable in samples:
            only = ((cost.assignment == variable) | (cost.assignment == NONE)).all(axis=1)
            shares = np.where(cost.assignment == variable, sizes, 1).prod(axis=1)
            row = int(np.argmax(np.where(only, shares, 0)))
            if shares[row] > most:
                best, most = row, int(shares[row])
        choices.append(best)
        if most < sizes.prod():
            (whole if most == 1 else partly).append(group.name)
    return DataParallel(np.array(choices, dtype=np.uint32), tuple(whole), tuple(partly))
