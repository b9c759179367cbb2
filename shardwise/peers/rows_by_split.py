"""The rows of a group's costs that practitioners take, by the split that they name."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shardwise.cost.group_costs import GroupCosts


class RowsBySplit:
    """The rows of a group's costs by their split: one for each ZeRO stage and recomputation."""

    def __init__(self, cost: GroupCosts, sizes: NDArray[np.int64]) -> None:
        self._cost = cost
        marked = cost.zero_axes[:, None] >> np.arange(len(sizes)) & 1
        self._ranks = np.where(marked, sizes, 1).prod(axis=1)
        _, split = np.unique(cost.assignment, axis=0, return_inverse=True)
        self._split = split.reshape(-1)
        self._known: dict[tuple[int, int, bool], NDArray[np.int64]] = {}

    def by_split(self, stage: int, within: int, recompute: bool) -> NDArray[np.int64]:
        """Returns for every split the row nearest in recomputation, then in stage, then in sharding
        over the axes of the bit mask `within` alone, then the fastest."""
        key = (stage, within, recompute)
        if key not in self._known:
            cost = self._cost
            beyond = cost.zero_axes & ~within != 0
            distance = np.abs(cost.zero.astype(np.int64) - stage)
            keys = (cost.time_s, -self._ranks, beyond, distance, cost.recompute != recompute)
            order = np.lexsort((*keys, self._split))
            _, first = np.unique(self._split[order], return_index=True)
            self._known[key] = order[first]
        return self._known[key]

    def like(self, row: int, stage: int, within: int, recompute: bool) -> int:
        """Returns the row that splits as another one does."""
        return int(self.by_split(stage, within, recompute)[self._split[row]])
