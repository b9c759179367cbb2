"""The tasks of a step that groups and edges own, and the arcs between them that paths may take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import inf

import numpy as np
from numpy.typing import NDArray

from shardwise.replay.edge_values import COLUMNS
from shardwise.replay.mixed.replay import MixedReplayer
from shardwise.replay.record import Cell
from shardwise.replay.tape import COMPUTE
from shardwise.sharding.layout import Floats

NOWHERE, ELSEWHERE = -1, -2
"""Before the first task of a path, and where the beginning is not part of this crossing path."""
MOVES = ("forward_s", "backward_s")
"""The moves of an edge that paths follow; others need not happen, and join no places then."""


@dataclass(frozen=True)
class Task:
    """A task of a group or of an edge, the column that says how long it takes, and whether it
    communicates."""

    number: int
    owner: int
    of_edge: bool
    column: int
    table: int
    communicates: bool


class Itinerary:
    """The tasks of one place's program that have an owner, and the arcs that paths may take.

    An arc leads from a task to one that waits for it, at once or through tasks that nothing owns,
    of the same group, or of a group and an edge at it; or from one operator of a group to its next
    one on the same device.
    """

    def __init__(self, replayer: MixedReplayer) -> None:
        self.problem = replayer.problem
        self.repeat = replayer.kit.repeat
        self.count = replayer.tasks
        tape = replayer.kit.tape
        self._dependencies = [(before, after) for before, after in tape.dependencies.tolist()]
        self._communicates = tape.streams != COMPUTE
        first = replayer.places[0]
        self.tasks: dict[int, Task] = {}
        for number, (value, stream) in enumerate(
            zip(tape.durations, tape.streams.tolist(), strict=True)
        ):
            if isinstance(value, Cell):
                of_edge = first.edge_values(value.table) is not None
                if of_edge and COLUMNS[value.column] not in MOVES:
                    continue
                self.tasks[number] = Task(
                    number, value.owner, of_edge, value.column, value.table, stream != COMPUTE
                )
        self.before: list[list[int]] = [[] for _ in range(self.count)]
        through: dict[int, list[int]] = {}
        for before, after in sorted(self._dependencies, key=lambda arc: (arc[1], arc[0])):
            # What waits for a task that nothing owns waits for all that this one waits for.
            for first_of in (before, *through.get(before, ())):
                if self._leads(first_of, after):
                    self.before[after].append(first_of)
                if not isinstance(tape.durations[after], Cell):
                    through.setdefault(after, []).append(first_of)
        latest: dict[int, int] = {}
        for number, task in self.tasks.items():
            if not (task.of_edge or task.communicates):
                if task.owner in latest:
                    self.before[number].append(latest[task.owner])
                latest[task.owner] = number

    def _leads(self, before: int, after: int) -> bool:
        a, b = self.tasks.get(before), self.tasks.get(after)
        if a is None or b is None or (a.of_edge and b.of_edge):
            return False
        if a.of_edge or b.of_edge:
            edge = self.problem.edges[a.owner if a.of_edge else b.owner]
            return (b.owner if a.of_edge else a.owner) in (edge.source, edge.target)
        return a.owner == b.owner

    @cached_property
    def around(self) -> dict[int, tuple[set[int], set[int]]]:
        """Per task of an edge the groups of the tasks before and after it."""
        found: dict[int, tuple[set[int], set[int]]] = {
            number: (set(), set()) for number, task in self.tasks.items() if task.of_edge
        }
        for after, befores in enumerate(self.before):
            for before in befores:
                if after in found:
                    found[after][0].add(self.tasks[before].owner)
                if before in found:
                    found[before][1].add(self.tasks[after].owner)
        return found

    @cached_property
    def around_compute(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Of each task the last operator before it and the first one after it, (tasks,); of an
        operator itself. Before the step: -1, after it: `count`."""
        last = np.full(self.count, -1, dtype=np.int64)
        first = np.full(self.count, self.count, dtype=np.int64)
        computes = ~self._communicates
        last[computes] = first[computes] = np.flatnonzero(computes)
        arcs = self._dependencies
        for before, after in sorted(arcs, key=lambda arc: arc[1]):
            if not computes[after]:
                last[after] = max(last[after], last[before])
        for before, after in reversed(arcs):
            if not computes[before]:
                first[before] = min(first[before], first[after])
        return last, first

    @cached_property
    def operators(self) -> dict[int, list[int]]:
        """Per group its tasks of computation."""
        found: dict[int, list[int]] = {}
        for number, task in self.tasks.items():
            if not (task.of_edge or task.communicates):
                found.setdefault(task.owner, []).append(number)
        return found

    def longest(
        self, durations_s: Floats, begins: Mapping[int, float] | None = None, first: int = -1
    ) -> Reached:
        """Returns the longest paths to all tasks.

        `begins` are tasks with a time before which they surely do not end; with `first` all paths
        begin at the end of that task.
        """
        seconds = durations_s.tolist()
        length = [-inf] * self.count
        came: list[int] = [NOWHERE] * self.count
        for number in range(max(first, 0), self.count):
            if number == first:
                length[number] = 0.0
                continue
            if number not in self.tasks:
                continue
            longest = 0.0 if first < 0 else -inf
            for before in self.before[number]:
                if length[before] > longest:
                    longest, came[number] = length[before], before
            length[number] = longest + seconds[number]
            if begins is not None and begins.get(number, -inf) > length[number]:
                length[number], came[number] = begins[number], ELSEWHERE
        return Reached(length, came)


@dataclass(frozen=True)
class Reached:
    """Per task the length of the longest path to its end, and the task before it on that path."""

    length_s: list[float]
    came: list[int]

    def last(self) -> int:
        """Returns where the longest of all paths ends."""
        return int(np.argmax(self.length_s))

    def members(self, last: int, first: int = -1) -> tuple[NDArray[np.bool_], int]:
        """Returns which tasks lie on the path to one (but not `first`), and the task at which it
        began elsewhere (or -1), which does not."""
        found = np.zeros(len(self.came), dtype=bool)
        if self.length_s[last] == -inf:
            return found, -1
        while last >= 0 and last != first:
            if self.came[last] == ELSEWHERE:
                return found, last
            found[last] = True
            last = self.came[last]
        return found, -1
