"""The time for which each task of a step uses the links of each level.

Replay has one resource for all communication. Here durations are computed again with collectives
beyond a level taking no time: a task's remaining duration is within that level, and the difference
is beyond it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import cast

import numpy as np
from numpy.typing import NDArray

from shardwise.cost.assemble import SearchProblem
from shardwise.cost.reschedule import Rescheduler, Rescheduling, Step
from shardwise.cost.space import EVEN, SearchMesh
from shardwise.cost.step_settings import StepSettings
from shardwise.errors import InternalError
from shardwise.hardware import Hardware
from shardwise.replay.owner_costs import Choices
from shardwise.replay.replay import Replayer
from shardwise.replay.structure import numbered_tables
from shardwise.sharding.layout import Floats, Layouts


def seconds_by_level(
    replayer: Replayer, settings: StepSettings, choices: Choices, edge_choices: Choices
) -> dict[str, Floats]:
    """Returns each task's seconds at each link level, (tasks,), from the innermost level outwards,
    for one strategy, (groups,) and (edges,). Meaningless for tasks that compute."""
    mesh = replayer.problem.context.mesh
    names = list(dict.fromkeys(axis.level for axis in reversed(mesh.axes)))
    of_all = _durations(replayer, choices, edge_choices)
    ends = [
        np.minimum(
            _durations(_within(replayer, settings, names[: n + 1]), choices, edge_choices), of_all
        )
        for n in range(len(names) - 1)
    ]
    steps = np.maximum.accumulate([np.zeros_like(of_all), *ends, of_all])
    return dict(zip(names, np.diff(steps, axis=0), strict=True)) if names else {}


def _durations(replayer: Replayer, choices: Choices, edge_choices: Choices) -> Floats:
    durations, _, _ = replayer.values(choices[None, :], edge_choices[None, :])
    return np.asarray(durations[0])


def _within(replayer: Replayer, settings: StepSettings, names: list[str]) -> Replayer:
    """Returns a replayer of the same program in which only collectives within some levels take
    time."""
    problem = _problem_within(replayer.problem, names)
    tables = numbered_tables(problem)
    for table, other in zip(tables, replayer.group_tables, strict=True):
        table.places = (other, table)
    structures = [table.structure() for table in replayer.group_tables]
    for table, structure in zip(tables, structures, strict=True):
        if not table.follows(structure):
            raise InternalError("levels of links differ in what a step does")
    return Replayer(problem, settings, made=(replayer.kit, tables))


def _problem_within(problem: SearchProblem, names: list[str]) -> SearchProblem:
    context = problem.context
    outer = sum(1 << a for a, axis in enumerate(context.mesh.axes) if axis.level not in names)

    @cache
    def rescheduler(
        shape: tuple[int, ...], item_bytes: int, forbidden: str | None = None
    ) -> Rescheduling:
        paths = context.rescheduler(shape, item_bytes, forbidden)
        return _PathsWithin(cast(Rescheduler, paths), lambda mask: mask & outer != 0)

    mesh = _MeshWithin(context.mesh.mesh, context.mesh.axes, outer)
    return replace(problem, context=replace(context, mesh=mesh, rescheduler=rescheduler))


@dataclass(frozen=True)
class _MeshWithin(SearchMesh):
    """A mesh on which collectives over any axis of `outer`, a bit mask, take no time."""

    outer: int

    def collective_times(
        self,
        hardware: Hardware,
        operation: str,
        mask: int,
        sizes_bytes: Floats,
        proportion: int = EVEN,
    ) -> Floats:
        if mask & self.outer:
            return np.zeros_like(sizes_bytes)
        return super().collective_times(hardware, operation, mask, sizes_bytes, proportion)


class _PathsWithin:
    """Re-scheduling along the same paths, of which only steps within a level take time."""

    def __init__(self, paths: Rescheduler, beyond: Callable[[int], bool]) -> None:
        self._paths = paths
        self._beyond = beyond
        self._known: dict[tuple[int, int], float] = {}

    def register(self, layouts: Layouts) -> NDArray[np.int64]:
        return self._paths.register(layouts)

    def distance(self, source: NDArray[np.int64], target: NDArray[np.int64]) -> Floats:
        sources, targets = np.broadcast_arrays(source, target)
        pairs = zip(sources.ravel().tolist(), targets.ravel().tolist(), strict=True)
        return np.array([self._seconds(*pair) for pair in pairs]).reshape(sources.shape)

    def between(self, source: Layouts, target: Layouts) -> Floats:
        return self.distance(self.register(source), self.register(target))

    def staged_bytes(self, source: NDArray[np.int64], target: NDArray[np.int64]) -> Floats:
        return self._paths.staged_bytes(source, target)

    def path_between(self, source: tuple[int, ...], target: tuple[int, ...]) -> list[Step]:
        return self._paths.path_between(source, target)

    def _seconds(self, source: int, target: int) -> float:
        if source == target:
            return 0.0
        if (source, target) not in self._known:
            steps = self._paths.path(source, target)
            within = (step.time_s for step in steps if not self._beyond(step.axes))
            self._known[source, target] = sum(within)
        return self._known[source, target]
