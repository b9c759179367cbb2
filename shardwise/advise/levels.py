"""The communication of strategies by the level of links that carries it.

Every collective is priced once, by the axes that it spans (`cost/`). Here the same terms are added
up once more without the collectives that span several nodes; the rest is what goes between nodes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from typing import cast

import numpy as np
from numpy.typing import NDArray

from shardwise.advise.strategy import Strategy
from shardwise.cost.assemble import SearchProblem
from shardwise.cost.group_costs import CostContext
from shardwise.cost.group_work import GroupWork
from shardwise.cost.reschedule import Rescheduler
from shardwise.cost.space import SearchMesh
from shardwise.cost.terms import GroupTerms
from shardwise.hardware.mesh import BETWEEN, INSIDE
from shardwise.sharding.layout import Floats, Layouts

Choices = NDArray[np.unsignedinteger]


class Levels:
    """Splits the communication of strategies of one problem by level."""

    def __init__(self, problem: SearchProblem) -> None:
        self._problem = problem
        self._mesh = problem.context.mesh
        self._groups: dict[tuple[int, int], float] = {}
        self._edges: dict[tuple[int, int, int, int], float] = {}

    def seconds(
        self, choices: Choices, edge_choices: Choices, communication_s: float
    ) -> dict[str, float]:
        """Returns the seconds at each level of one strategy: choices (groups,) and (edges,).

        They add up to `communication_s`, the whole communication of the strategy.
        """
        levels = {axis.level for axis in self._mesh.axes}
        if len(levels) < 2:
            return dict.fromkeys(levels, communication_s)
        inside_s = sum(self._group_s(g, int(k)) for g, k in enumerate(choices))
        inside_s += self._edges_s(choices, edge_choices)
        inside_s = min(inside_s, communication_s)
        return {INSIDE: inside_s, BETWEEN: communication_s - inside_s}

    @cached_property
    def _context(self) -> CostContext:
        context, mesh = self._problem.context, self._mesh

        def rescheduler(
            shape: tuple[int, ...], item_bytes: int, forbidden: str | None = None
        ) -> Rescheduler:
            paths = context.rescheduler(shape, item_bytes, forbidden)
            return cast(Rescheduler, _InsidePaths(paths, mesh))

        return replace(context, rescheduler=rescheduler)

    def _group_s(self, group: int, choice: int) -> float:
        cost = self._problem.costs[group]
        key = (id(cost), choice)
        if key not in self._groups:
            rows = cost.assignment[choice][None, :]
            work = _InsideWork(self._context, self._problem.patterns[group], rows)
            terms = GroupTerms(work)
            total = terms.passes_communication_s()
            if cost.recompute[choice]:
                total = total + terms.rerun_communication_s()
            parameters = terms.parameters(int(cost.zero[choice]), cost.zero_axes[choice][None])
            sync_s = parameters.sync_s(terms.micro_batches).sum(axis=1)
            self._groups[key] = float((total + sync_s)[0])
        return self._groups[key]

    def _edges_s(self, choices: Choices, edge_choices: Choices) -> float:
        strategy = Strategy(self._problem, choices.tolist(), edge_choices.tolist())
        total = 0.0
        for e, edge in enumerate(self._problem.edges):
            row, column = edge.table.cell(int(choices[edge.source]), int(choices[edge.target]))
            alternative = int(edge_choices[e])
            if edge.table.time_s[row, column, alternative] == 0.0:
                continue
            key = (id(edge.table), row, column, alternative)
            if key not in self._edges:
                crossing = strategy.edge(e)
                steps = (*crossing.forward, *crossing.backward, *crossing.again)
                copies = len(edge.tensors) * self._problem.context.micro_batches
                self._edges[key] = copies * sum(
                    step.time_s for step in steps if not _spans(self._mesh, self._mask(step.axes))
                )
            total += self._edges[key]
        return total

    def _mask(self, names: Iterable[str]) -> int:
        axes = [axis.name for axis in self._mesh.axes]
        return sum(1 << axes.index(name) for name in names)


def _spans(mesh: SearchMesh, mask: int) -> bool:
    """Returns whether a collective over these axes leaves the node."""
    return mask != 0 and mesh.group_shape(mask).nodes > 1


class _InsideWork(GroupWork):
    """A group in which collectives that leave the node take no time."""

    def collective_s(self, operation: str, masks: NDArray[np.int64], sizes: Floats) -> Floats:
        spans = np.array([_spans(self.context.mesh, mask) for mask in masks.tolist()], dtype=bool)
        return super().collective_s(operation, np.where(spans, 0, masks), sizes)


class _InsidePaths:
    """Re-scheduling along the same paths, of which only the steps inside a node take time."""

    def __init__(self, paths: Rescheduler, mesh: SearchMesh) -> None:
        self._paths = paths
        self._mesh = mesh

    def between(self, source: Layouts, target: Layouts) -> Floats:
        pairs = zip(*np.broadcast_arrays(source, target), strict=True)
        return np.array([self._inside_s(tuple(a.tolist()), tuple(b.tolist())) for a, b in pairs])

    def _inside_s(self, source: tuple[int, ...], target: tuple[int, ...]) -> float:
        steps = self._paths.path_between(source, target) if source != target else []
        return sum(step.time_s for step in steps if not _spans(self._mesh, step.axes))
