"""Improvements specific to several kinds of devices: other shares and sums everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shardwise.cost.group_costs import GroupCosts
from shardwise.search.improve import Choices, Improver

PROPORTION, GRADIENT_SUM, STAGE = range(3)
"""Features that all groups change together."""


class MixedImprover(Improver):
    """Makes strategies from those that a game of several kinds met.

    Besides the moves for one kind, all groups of the best change their proportion, kind of gradient
    sum or ZeRO stage together, wherever a configuration with the same split has it. Groups of one
    class are also changed individually.
    """

    def _swaps(self, best: Choices) -> Iterator[Choices]:
        yield from super()._swaps(best)
        yield from self._all_together(best)

    def _all_together(self, best: Choices) -> Iterator[Choices]:
        """Yields the best with one proportion, kind of gradient sum or stage everywhere."""
        for what, count in (
            (PROPORTION, max(int(c.proportion.max(initial=0)) for c in self._problem.costs) + 1),
            (GRADIENT_SUM, len(self._problem.context.mesh.gradient_sums)),
            (STAGE, 4),
        ):
            for value in range(count):
                one = [
                    self._instead(g, int(row), what, value) for g, row in enumerate(best.tolist())
                ]
                yield np.array(one, dtype=np.uint32)

    @cached_property
    def _rows(self) -> list[dict[tuple[object, ...], int]]:
        """Each group's configurations by all that they choose."""
        known: dict[int, dict[tuple[object, ...], int]] = {}
        for cost in self._problem.costs:
            if id(cost) not in known:
                known[id(cost)] = {_key(cost, row): row for row in range(len(cost.time_s))}
        return [known[id(cost)] for cost in self._problem.costs]

    def _instead(self, group: int, row: int, what: int, value: int) -> int:
        """Returns the configuration that differs in this feature only, if there is one."""
        key = list(_key(self._problem.costs[group], row))
        key[what] = value
        rows = self._rows[group]
        if tuple(key) not in rows and what == PROPORTION:
            key[STAGE] = key[GRADIENT_SUM] = 0
        return rows.get(tuple(key), row)


def _key(cost: GroupCosts, row: int) -> tuple[object, ...]:
    """Returns a configuration's choices: the changeable ones first, then its split."""
    chosen: list[NDArray[np.int8]] = [cost.proportion, cost.gradient_sum, cost.zero]
    return (
        *(int(of[row]) for of in chosen),
        bool(cost.recompute[row]),
        cost.assignment[row].tobytes(),
    )
