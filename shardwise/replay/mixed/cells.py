"""Task durations in every configuration and crossing: cells, looked up by strategies."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from shardwise.cost.mixed.assemble import MixedProblem
from shardwise.replay.edge_values import COLUMNS
from shardwise.replay.mixed.itinerary import Task
from shardwise.replay.mixed.replay import MixedReplayer
from shardwise.replay.owner_costs import Choices
from shardwise.replay.record import Cell
from shardwise.replay.replay import Replayer
from shardwise.sharding.layout import Floats


class Chosen:
    """The cells of owners that S strategies choose."""

    def __init__(self, problem: MixedProblem, choices: Choices, edge_choices: Choices) -> None:
        self._choices = choices
        self._edges = [
            (
                edge.table.rows[choices[:, edge.source]],
                edge.table.columns[choices[:, edge.target]],
                own,
            )
            for edge, own in zip(problem.edges, edge_choices.T, strict=True)
        ]

    def of(self, task: Task, cells: Floats) -> Floats:
        """Returns the chosen cells of a task, (S,)."""
        if task.of_edge:
            return np.asarray(cells[self._edges[task.owner]])
        return np.asarray(cells[self._choices[:, task.owner]])


class PlaceDurations:
    """The durations of the tasks of all places, looked up; as computed by
    `MixedReplayer.values`."""

    def __init__(self, replayer: MixedReplayer) -> None:
        self._replayer = replayer
        self._tasks: list[tuple[int, Task]] = []
        for number, value in enumerate(replayer.kit.tape.durations):
            if isinstance(value, Cell):
                of_edge = replayer.places[0].edge_values(value.table) is not None
                task = Task(number, value.owner, of_edge, value.column, value.table, False)
                self._tasks.append((number, task))
        self._known: dict[Hashable, Floats] = {}

    def of(self, choices: Choices, edge_choices: Choices) -> Floats:
        """Returns the durations of S strategies, (S, places · tasks)."""
        at = Chosen(self._replayer.problem, choices, edge_choices)
        parts = []
        for place in self._replayer.places:
            part = np.tile(place.durations.constants, (len(choices), 1))
            for number, task in self._tasks:
                key = (id(place), task.table, task.column)
                if key not in self._known:
                    self._known[key] = cells_of(place, task)
                part[:, number] = at.of(task, self._known[key])
            parts.append(part)
        return np.concatenate(parts, axis=1)


def cells_of(replayer: Replayer, task: Task) -> Floats:
    """Returns a task's duration at a place: of a group (K,), of an edge (R, C, A)."""
    values = replayer.edge_values(task.table)
    if values is None:
        return np.ascontiguousarray(replayer.group_values(task.table)[:, task.column])
    weights = np.zeros(len(COLUMNS))
    weights[task.column] = 1.0
    return values.weighted(weights)
