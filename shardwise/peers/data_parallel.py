"""Data parallelism: the batch over all mesh axes wherever there is a batch (TensorOpt §2.2).

Every device holds all parameters and works on its share of the samples; gradients are summed by
one all_reduce each. A group that no sample runs through (a position table) is computed in full by
every device; a group whose batch cannot be cut into that many shares takes as many as it can.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwise.cost.assemble import SearchProblem
from shardwise.cost.space import NONE
from shardwise.peers.answer import Answer
from shardwise.peers.evaluate import Point, evaluate
from shardwise.peers.spaces import splits_only
from shardwise.search.search import Search
from shardwise.sharding.names import sample_variables

METHOD = "data-parallel"
TITLE = "Data parallelism"


@dataclass(frozen=True)
class DataParallel:
    """The rows of data parallelism, and the names of the groups that it does not split evenly.

    `whole` are the groups without a batch, `partly` those split among fewer than all devices.
    """

    choices: NDArray[np.uint32]
    whole: tuple[str, ...]
    partly: tuple[str, ...]

    def notes(self) -> tuple[str, ...]:
        """Returns what does not split, for people."""
        notes = []
        if self.whole:
            notes.append(f"no batch, computed in full by all: {_listed(self.whole)}")
        if self.partly:
            notes.append(f"too small a batch for all devices: {_listed(self.partly)}")
        return tuple(notes)


def data_parallel(search: Search) -> Point:
    """Returns the point of data parallelism on the search's mesh, without ZeRO and recomputation.

    `.memory_bytes`, `.time_s`, `.compute_s`, `.communication_s`, and `.choices`, rows of the
    costs of `splits_only(search)`. Whether it fits is `point.memory_bytes <= search.limit_bytes`.
    """
    problem = splits_only(search)
    return evaluate(problem, data_parallel_rows(problem).choices)


def data_parallel_over_mini_time(search: Search) -> float | None:
    """Returns time of data parallelism ÷ the shortest that fits the limit (TensorOpt Table 4).

    None where nothing fits. Data parallelism itself need not fit.
    """
    fastest = search.fastest_within(search.limit_bytes)
    return None if fastest is None else data_parallel(search).time_s / float(search.time_s[fastest])


def data_parallel_answer(problem: SearchProblem) -> Answer:
    """Returns data parallelism as one point of a problem without ZeRO."""
    rows = data_parallel_rows(problem)
    return Answer(
        METHOD,
        TITLE,
        "the batch over all devices, all parameters on each",
        (evaluate(problem, rows.choices),),
        notes=rows.notes(),
    )


def data_parallel_rows(problem: SearchProblem) -> DataParallel:
    """Returns per group the row that splits the batch and nothing else into the most shares.

    Of several such rows the one that shards parameters over the most devices (ZeRO).
    """
    sizes = problem.context.mesh.sizes
    choices: list[int] = []
    whole: list[str] = []
    partly: list[str] = []
    groups = problem.coarsened.groups
    for group, cost, samples in zip(
        groups, problem.costs, sample_variables(problem.coarsened), strict=True
    ):
        marked = cost.zero_axes[:, None] >> np.arange(len(sizes)) & 1
        sharded = np.where(marked, sizes, 1).prod(axis=1)
        best, most = _most_shares(cost.assignment, sizes, NONE, sharded)
        for variable in samples:
            row, shares = _most_shares(cost.assignment, sizes, variable, sharded)
            if shares > most:
                best, most = row, shares
        choices.append(best)
        if most < sizes.prod():
            (whole if most == 1 else partly).append(group.name)
    return DataParallel(np.array(choices, dtype=np.uint32), tuple(whole), tuple(partly))


def _most_shares(
    assignment: NDArray[np.int8],
    sizes: NDArray[np.int64],
    variable: int,
    sharded: NDArray[np.int64],
) -> tuple[int, int]:
    """Returns the row that splits `variable` alone into the most shares, and their number."""
    only = ((assignment == variable) | (assignment == NONE)).all(axis=1)
    split = (assignment == variable) & (variable != NONE)
    shares = np.where(only, np.where(split, sizes, 1).prod(axis=1), 0)
    row = int(np.lexsort((-sharded, -shares))[0])
    return row, int(shares[row])


def _listed(names: tuple[str, ...], most: int = 4) -> str:
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest
