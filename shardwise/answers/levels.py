"""Communication of strategies by link level.

Every collective is priced once, by the axes that it spans (`cost/`). Here the same terms are summed
again without collectives beyond a level; the difference is what goes beyond it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from shardwise.answers.strategy import Strategy
from shardwise.cost.assemble import SearchProblem
from shardwise.cost.context import CostContext
from shardwise.cost.group_work import GroupWork
from shardwise.cost.reschedule import Rescheduling
from shardwise.cost.terms import GroupTerms
from shardwise.sharding.layout import Floats, Layouts
from shardwise.sharding.pattern import GroupPattern

Choices = NDArray[np.unsignedinteger]
Beyond = Callable[[int], bool]


class Levels:
    """Splits the communication of strategies of one problem by level."""

    def __init__(self, problem: SearchProblem) -> None:
        self._problem = problem
        self._mesh = problem.context.mesh
        # From the innermost level outwards.
        self._names = list(dict.fromkeys(axis.level for axis in reversed(self._mesh.axes)))
        self._contexts: dict[int, CostContext] = {}
        self._groups: dict[tuple[int, int, int], float] = {}
        self._edges: dict[tuple[int, int, int, int, int], float] = {}

    def seconds(
        self, choices: Choices, edge_choices: Choices, communication_s: float
    ) -> dict[str, float]:
        """Returns the seconds at each level of one strategy: choices (groups,) and (edges,).

        They add up to `communication_s`, the whole communication of the strategy.
        """
        if len(self._names) < 2:
            return dict.fromkeys(self._names, communication_s)
        within = [
            min(self._within_s(choices, edge_choices, level), communication_s)
            for level in range(len(self._names) - 1)
        ]
        ends = [*np.maximum.accumulate(within).tolist(), communication_s]
        return dict(zip(self._names, np.diff(ends, prepend=0.0).tolist(), strict=True))

    def _within_s(self, choices: Choices, edge_choices: Choices, level: int) -> float:
        """Returns the seconds of the collectives within a level."""
        groups = sum(self._group_s(g, int(k), level) for g, k in enumerate(choices))
        return groups + self._edges_s(choices, edge_choices, level)

    def _context(self, level: int) -> CostContext:
        if level not in self._contexts:
            context = self._problem.context

            def rescheduler(
                shape: tuple[int, ...], item_bytes: int, forbidden: str | None = None
            ) -> Rescheduling:
                paths = context.rescheduler(shape, item_bytes, forbidden)
                return cast(Rescheduling, _PathsWithin(paths, self._beyond(level)))

            self._contexts[level] = replace(context, rescheduler=rescheduler)
        return self._contexts[level]

    def _beyond(self, level: int) -> Beyond:
        """Returns whether a collective over some axes (a bit mask) goes beyond a level."""
        outer = sum(
            1 << a
            for a, axis in enumerate(self._mesh.axes)
            if self._names.index(axis.level) > level
        )
        return lambda mask: mask & outer != 0

    def _group_s(self, group: int, choice: int, level: int) -> float:
        cost = self._problem.costs[group]
        key = (id(cost), choice, level)
        if key not in self._groups:
            work = _WorkWithin(
                self._context(level),
                self._problem.patterns[group],
                cost.assignment[choice][None, :],
                cost.proportion[choice][None],
                self._beyond(level),
            )
            terms = GroupTerms(work)
            total = terms.passes_communication_s()
            if cost.recompute[choice]:
                total = total + terms.rerun_communication_s()
            parameters = terms.parameters(
                int(cost.zero[choice]), int(cost.gradient_sum[choice]), cost.zero_axes[choice][None]
            )
            sync_s = parameters.sync_s(terms.micro_batches).sum(axis=1)
            self._groups[key] = float((total + sync_s)[0])
        return self._groups[key]

    def _edges_s(self, choices: Choices, edge_choices: Choices, level: int) -> float:
        beyond = self._beyond(level)
        strategy = Strategy(self._problem, choices.tolist(), edge_choices.tolist())
        total = 0.0
        for e, edge in enumerate(self._problem.edges):
            row, column = edge.table.cell(int(choices[edge.source]), int(choices[edge.target]))
            alternative = int(edge_choices[e])
            if edge.table.time_s[row, column, alternative] == 0.0:
                continue
            key = (id(edge.table), row, column, alternative, level)
            if key not in self._edges:
                crossing = strategy.edge(e)
                steps = (*crossing.forward, *crossing.backward, *crossing.again)
                copies = len(edge.tensors) * self._problem.context.micro_batches
                self._edges[key] = copies * sum(
                    step.time_s for step in steps if not beyond(self._mask(step.axes))
                )
            total += self._edges[key]
        return total

    def _mask(self, names: Iterable[str]) -> int:
        axes = [axis.name for axis in self._mesh.axes]
        return sum(1 << axes.index(name) for name in names)


class _WorkWithin(GroupWork):
    """A group in which collectives beyond a level take no time."""

    def __init__(
        self,
        context: CostContext,
        pattern: GroupPattern,
        assignment: NDArray[np.int8],
        proportion: NDArray[np.int8],
        beyond: Beyond,
    ) -> None:
        super().__init__(context, pattern, assignment, proportion)
        self._goes_beyond = beyond

    def collective_s(self, operation: str, masks: NDArray[np.int64], sizes: Floats) -> Floats:
        spans = np.array([self._goes_beyond(mask) for mask in masks.tolist()], dtype=bool)
        return super().collective_s(operation, np.where(spans, 0, masks), sizes)


class _PathsWithin:
    """Re-scheduling along the same paths, in which only steps within a level take time."""

    def __init__(self, paths: Rescheduling, beyond: Beyond) -> None:
        self._paths = paths
        self._beyond = beyond

    def between(self, source: Layouts, target: Layouts) -> Floats:
        pairs = zip(*np.broadcast_arrays(source, target), strict=True)
        return np.array([self._within_s(tuple(a.tolist()), tuple(b.tolist())) for a, b in pairs])

    def _within_s(self, source: tuple[int, ...], target: tuple[int, ...]) -> float:
        steps = self._paths.path_between(source, target) if source != target else []
        return sum(step.time_s for step in steps if not self._beyond(step.axes))
