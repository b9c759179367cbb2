"""The assignments of a group on a cluster of several kinds, each with a proportion.

Under even shares over all blocks a group may be split as on devices of one kind. Under any other
proportion the block axis splits one of its variables. If shares are even among some blocks, this
may be any variable (for a single block, the first is enough), or none, so that these blocks repeat
each other. Under uneven shares it is a variable over samples, or another one if every share is a
whole number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from shardwise.cost.configurations import legal_splits, no_configuration, pinned_axes
from shardwise.cost.context import CostContext
from shardwise.cost.legality import Legality, keeping_rows
from shardwise.cost.mixed.cluster import BLOCKS, Cluster
from shardwise.cost.mixed.proportions import Proportion
from shardwise.cost.space import EVEN, NONE, assignments
from shardwise.sharding.pattern import GroupPattern

Rows = tuple[NDArray[np.int8], NDArray[np.int8]]
"""Assignments (n, axes) and the proportion of each (n,)."""


def mixed_assignments(
    context: CostContext, cluster: Cluster, pattern: GroupPattern, samples: Sequence[int]
) -> Rows:
    """Returns the assignments that the group and the pins allow under each proportion.

    `samples` are the group's variables that run over samples. Raises `BadInput` if there are none.
    """
    axes, count = context.mesh.axes, len(pattern.group.variables)
    pinned = pinned_axes(context, pattern)
    legal = keeping_rows(pattern.group.variables, legal_splits(context, pattern))
    found = [assignments(axes, count, legal, pinned)]
    possible = Legality(context.graph, pattern.group)
    for proportion in cluster.proportions[1:]:
        rows = [np.zeros((0, len(axes)), dtype=np.int8)]
        if proportion.is_even and len(proportion.support) > 1 and not proportion.is_whole:
            alone = [v for v in pinned.get(BLOCKS, [NONE]) if v == NONE]
            if alone:
                rows.append(assignments(axes, count, legal, pinned | {BLOCKS: alone}))
        for variable in _variables(proportion, count, samples):
            if variable not in pinned.get(BLOCKS, [variable]):
                continue
            exact = not proportion.is_even and variable not in samples
            some = assignments(
                axes,
                count,
                _legal(legal, possible, variable, proportion, axes[BLOCKS].size, exact),
                pinned | {BLOCKS: [variable]},
            )
            rows.append(some)
            if len(some) and len(proportion.support) == 1:
                break
        found.append(np.concatenate(rows))
    if not sum(map(len, found)):
        raise no_configuration(context, pattern, context.pins.all_of(pattern.group))
    numbers = np.repeat(np.arange(len(found), dtype=np.int8) + EVEN, [len(rows) for rows in found])
    return np.concatenate(found), numbers


def _variables(proportion: Proportion, count: int, samples: Sequence[int]) -> list[int]:
    """Returns which variables the blocks may split, those over samples first."""
    return [*samples, *(v for v in range(count) if v not in samples)]


def _legal(
    legal: Callable[[int, int], bool],
    possible: Legality,
    variable: int,
    proportion: Proportion,
    blocks: int,
    exact: bool,
) -> Callable[[int, int], bool]:
    """Returns whether a variable may be split into a number of shares, that of the blocks too for
    the one that they split."""

    def is_legal(other: int, parts: int) -> bool:
        if other != variable:
            return legal(other, parts)
        inside = parts // blocks
        weights = proportion.weights
        return legal(other, 1) and possible.uneven(other, weights, inside, exact=exact)

    return is_legal
