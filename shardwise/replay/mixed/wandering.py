"""Critical paths that cross device types: serial dependences between places.

A path at one place ignores the computation of other places, so a mean of such paths counts an
operator on one kind only with a fraction of its time. A *crossing* path (`Wanderer`) follows each
operator to its place, and counts it whole. It chooses one place from every set of places that may
share an operator. Each task t has a set Q_t(s) of places, and the claim is that

    every place q of Q_t(s) ends its part of t no earlier than X,

with X the durations so far. For t of a group, Q_t is the path's choice among the places of the
group's configuration. A task u that waits for t continues the claim

- with the longest part of u, to all places: where u is communication that joins places in s, of
  which no part begins before all places are ready and after which all wait for the longest part;
- with the shortest part of u among Q_u(s), else: if Q_u(s) is within Q_t(s), since at each of these
  places u waits for t.

Q is enlarged until one of the two holds for every arc under every choice (`_Wanderer._settle`), so
the arcs of a path do not depend on the strategy, and its length is a sum of owners' cells, no
longer than the step (ADR 0049). If Q has all places, and one of them has no share, an operator
counts nothing: weak, but valid.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from shardwise.cost.crossings import EdgeTable
from shardwise.replay.mixed.cells import Chosen, cells_of
from shardwise.replay.mixed.itinerary import Itinerary, Task
from shardwise.replay.mixed.replay import MixedReplayer
from shardwise.replay.owner_costs import NOTHING, Choices, OwnerCosts
from shardwise.sharding.layout import Floats

Sets = NDArray[np.uint32]
"""Sets of places, as bits."""
STEPS = 2.0**30
"""Weights are rounded down to multiples of 1 / STEPS, so that equal layers have equal ones."""


class Wanderer:
    """A crossing path's choice among the places that share an operator: `prefers` if it is one of
    them, else the first of `order` that is."""

    def __init__(
        self, replayer: MixedReplayer, itinerary: Itinerary, prefers: int, order: Sequence[int]
    ) -> None:
        self.itinerary = itinerary
        self._replayer = replayer
        self._problem = replayer.problem
        self._places = len(replayer.places)
        self._all = np.uint32((1 << self._places) - 1)
        self._joined: dict[Hashable, NDArray[np.bool_]] = {}
        self._parts: dict[Hashable, Floats] = {}
        chosen = self._chosen([prefers, *(p for p in order if p != prefers)])
        self.sets: list[Sets] = [chosen[cost.proportion] for cost in self._problem.costs]
        self._settle()
        known: dict[Hashable, Floats] = {}
        self._cells = {
            number: self._cells_of(task, known) for number, task in itinerary.tasks.items()
        }

    def _chosen(self, order: Sequence[int]) -> Sets:
        """Returns the choice under each proportion, (proportions,)."""
        cluster = self._problem.cluster
        present = np.isfinite([cluster.parts(p) for p in range(self._places)])
        rank = np.array(order)
        first = present[rank].argmax(axis=0)
        return np.asarray(np.uint32(1) << rank[first].astype(np.uint32), dtype=np.uint32)

    def _settle(self) -> None:
        """Enlarges the sets of configurations until every arc continues the claim."""
        around = self.itinerary.around
        arcs: dict[Hashable, tuple[int, NDArray[np.bool_], set[int], set[int]]] = {}
        for number, (before, after) in around.items():
            task = self.itinerary.tasks[number]
            key = (task.owner, task.column)
            if key in arcs:
                arcs[key][2].update(before)
                arcs[key][3].update(after)
            else:
                edge = self._problem.edges[task.owner]
                free = ~self._joins(task) & _counted(edge.table)
                arcs[key] = (task.owner, np.asarray(free.any(axis=2)), set(before), set(after))
        changed = True
        while changed:
            changed = False
            for owner, free, befores, afters in arcs.values():
                needed = np.where(free, self._of_cells(owner, afters), np.uint32(0))
                for group in befores:
                    changed |= self._enlarge(owner, group, needed)

    def _of_cells(self, edge: int, groups: set[int]) -> Sets:
        """Returns the union of the sets of groups at an edge's ends, by cell (R, C)."""
        own = self._problem.edges[edge]
        rows, columns = own.table.count.shape
        total = np.zeros((rows, columns), dtype=np.uint32)
        for group in groups:
            of_source = group == own.source
            union = np.zeros(rows if of_source else columns, dtype=np.uint32)
            classes = own.table.rows if of_source else own.table.columns
            np.bitwise_or.at(union, classes, self.sets[group])
            total |= union[:, None] if of_source else union[None, :]
        return total

    def _enlarge(self, edge: int, group: int, needed: Sets) -> bool:
        own = self._problem.edges[edge]
        of_source = group == own.source
        union = np.bitwise_or.reduce(needed, axis=1 if of_source else 0)
        wider = self.sets[group] | union[own.table.rows if of_source else own.table.columns]
        changed = bool((wider != self.sets[group]).any())
        self.sets[group] = wider
        return changed

    def _cells_of(self, task: Task, known: dict[Hashable, Floats]) -> Floats:
        """Returns the part of a task that counts: of a group (K,), of an edge (R, C, A)."""
        if task.of_edge:
            sets = self._of_cells(task.owner, self.itinerary.around[task.number][1])[:, :, None]
        else:
            sets = self.sets[task.owner]
        key = (task.table, task.column, task.communicates, sets.tobytes())
        if key not in known:
            least: Floats = np.full(self._part(0, task).shape, np.inf)
            most: Floats = np.zeros(least.shape)
            for place in range(self._places):
                part = self._part(place, task)
                inside = (sets >> np.uint32(place) & np.uint32(1)).astype(bool)
                least = np.where(inside, np.minimum(least, part), least)
                most = np.maximum(most, part)
            least = np.where(np.isfinite(least), least, 0.0)
            known[key] = np.where(self._joins(task), most, least) if task.communicates else least
        return known[key]

    def _part(self, place: int, task: Task) -> Floats:
        key = (place, task.table, task.column)
        if key not in self._parts:
            self._parts[key] = cells_of(self._replayer.places[place], task)
        return self._parts[key]

    def _joins(self, task: Task) -> NDArray[np.bool_]:
        key = (task.table, task.column)
        if key not in self._joined:
            self._joined[key] = cells_of(self._replayer.joins, task) > 0.0
        return self._joined[key]

    def durations(self, choices: Choices, edge_choices: Choices) -> Floats:
        """Returns the parts that count of S strategies, (S, tasks)."""
        result = np.zeros((len(choices), self.itinerary.count))
        at = Chosen(self._problem, choices, edge_choices)
        for number, task in self.itinerary.tasks.items():
            result[:, number] = at.of(task, self._cells[number])
        return result

    def weighted(self, weights: Floats) -> OwnerCosts:
        """Returns the parts that count, weighted (tasks,), as costs of their owners."""
        weights = np.floor(weights * STEPS) / STEPS
        groups: dict[int, list[tuple[float, Floats]]] = {}
        edges: dict[int, list[tuple[float, Floats]]] = {}
        for number in np.flatnonzero(weights).tolist():
            task = self.itinerary.tasks[number]
            of = edges if task.of_edge else groups
            of.setdefault(task.owner, []).append((float(weights[number]), self._cells[number]))
        known: dict[Hashable, Floats] = {}

        def total(parts: list[tuple[float, Floats]]) -> Floats:
            key = tuple((weight, id(cells)) for weight, cells in parts)
            if key not in known:
                known[key] = sum((weight * cells for weight, cells in parts), NOTHING)
            return known[key]

        empty: dict[int, Floats] = {}
        of_groups = []
        for group, cost in enumerate(self._problem.costs):
            if group in groups:
                of_groups.append(total(groups[group]))
            else:
                of_groups.append(empty.setdefault(len(cost.time_s), np.zeros(len(cost.time_s))))
        of_edges = [
            total(edges[edge]) if edge in edges else NOTHING
            for edge in range(len(self._problem.edges))
        ]
        return OwnerCosts(0.0, of_groups, of_edges)


def _counted(table: EdgeTable) -> NDArray[np.bool_]:
    """Returns which alternatives count, (R, C, A)."""
    return np.arange(table.kept.shape[2])[None, None, :] < table.count[:, :, None]


def wanderers(replayer: MixedReplayer) -> list[Wanderer]:
    """Returns a crossing path per preferred place; none if there is one place."""
    places = range(len(replayer.places))
    if len(places) < 2:
        return []
    itinerary = Itinerary(replayer)
    peaks = [place.problem.context.hardware.devices[0].peak("float32") for place in replayer.places]
    order = sorted(places, key=lambda place: peaks[place])
    return [Wanderer(replayer, itinerary, place, order) for place in places]
