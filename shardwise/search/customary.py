"""Customary strategies: data parallelism under each ZeRO stage, with and without recomputation.

They are candidates of a search by replayed time, so its answer is never slower than one of them
that fits.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from shardwise.cost.assemble import SearchProblem
from shardwise.cost.group_costs import GroupCosts
from shardwise.cost.options import ZERO_STAGES
from shardwise.cost.space import NONE
from shardwise.sharding.layout import Floats
from shardwise.sharding.names import sample_variables


def customary(problem: SearchProblem) -> NDArray[np.uint32]:
    """Returns choices (S, groups) that split samples over all devices.

    One strategy per ZeRO stage, sharded over all devices and over those of a node, without
    recomputation and with it everywhere. If a stage was pruned from a group, because another one is
    no worse in anything, the group takes the cheapest of the others.
    """
    wanted = [
        (stage, wide, recompute)
        for recompute in (False, True)
        for stage in ZERO_STAGES
        for wide in ((True, False) if stage else (True,))
    ]
    return np.unique(_strategies(problem, wanted), axis=0)


def fully_sharded(problem: SearchProblem) -> NDArray[np.uint32]:
    """Returns the choices (2, groups) for ZeRO-3 over all devices, without and with
    recomputation."""
    return _strategies(problem, [(3, True, False), (3, True, True)])


def _strategies(
    problem: SearchProblem, wanted: Sequence[tuple[int, bool, bool]]
) -> NDArray[np.uint32]:
    """Returns the strategies nearest to these stages, sharded wide or not, with recomputation or
    not."""
    sizes = problem.context.mesh.sizes
    samples = sample_variables(problem.coarsened)
    rows: dict[Hashable, list[int]] = {}
    columns = []
    for cost, variables in zip(problem.costs, samples, strict=True):
        key = (id(cost), variables)
        if key not in rows:
            rows[key] = [_row(cost, variables, sizes, *of) for of in wanted]
        columns.append(rows[key])
    return np.array(columns, dtype=np.uint32).T


def _row(
    cost: GroupCosts,
    samples: tuple[int, ...],
    sizes: NDArray[np.int64],
    stage: int,
    wide: bool,
    recompute: bool,
) -> int:
    """Returns the row nearest to a strategy by split, recomputation and stage, then the fastest."""
    shares = np.zeros(len(cost.time_s), dtype=np.int64)
    for variable in (*samples, NONE):
        split = cost.assignment == variable
        only = (split | (cost.assignment == NONE)).all(axis=1)
        count = np.where(split & (variable != NONE), sizes, 1).prod(axis=1)
        shares = np.maximum(shares, np.where(only, count, 0))
    marked = cost.zero_axes[:, None] >> np.arange(len(sizes)) & 1
    ranks = np.where(marked, sizes, 1).prod(axis=1)
    keys: tuple[Floats | NDArray[np.generic], ...] = (
        cost.time_s,
        -ranks if wide else ranks,
        np.abs(cost.zero.astype(np.int64) - stage),
        cost.recompute != recompute,
        -shares,
    )
    return int(np.lexsort(keys)[0])
