"""Repeated layers of a graph, of which only a few are written.

Operators are compared at a distance, the period: with the same table, place in their group,
footprint and gradients (constants: with the same sizes), reading at each port what lies as far
before them, or one and the same tensor, over edges with the same table. The longest such stretch,
cut where no group goes on, is a `Repetition`: `count` layers whose operators, groups and edges are
numbered on and on.

`KEPT` layers of each are written, `EARLY` from the beginning and the rest from the end, as if the
model had no others (`Folded`): where a later one reads an omitted layer, it reads the last earlier
one. Owners keep their numbers in the whole model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from shardwise.cost.assemble import SearchProblem
from shardwise.graph.graph import Operator
from shardwise.replay.footprint import Footprint
from shardwise.replay.record import Numbers
from shardwise.replay.tape import NOBODY
from shardwise.sharding.coarsen import Group
from shardwise.sharding.pattern import Patterns

KEPT = 6
"""Number of written layers: a first, three with the same structure, and two last ones, of which
backward begins with the second."""
EARLY = 3
"""Number of them before the omitted layers."""
PORTS = 8
"""Maximum inputs of compared operators."""
MANY = 1 << 20
"""An upper bound on any operator's inputs or outputs."""
WORTH = 0.35
"""Minimum share of omitted operators; below it, writing everything is as fast."""
CANDIDATES = 8
"""Periods that are tried."""
GONE = -2
"""In place of a layer's number: an omitted one."""


@dataclass(frozen=True)
class Repetition:
    """`count` layers of `period` operators, `groups` groups and `edges` edges each, from the
    numbers `operator`, `group` and `edge` on. An edge is of the layer that reads."""

    operator: int
    period: int
    count: int
    group: int
    groups: int
    edge: int
    edges: int

    @property
    def left_out(self) -> int:
        """The number of omitted layers."""
        return self.count - KEPT


@dataclass(frozen=True)
class KeptEdge:
    """An edge that is written, with its number in the whole model."""

    number: int
    source: int
    target: int
    tensors: tuple[str, ...]


class Folded:
    """The written part of a problem with omitted layers.

    Written layers are numbered consecutively over all repetitions, `KEPT` of each. `of_operators`,
    `of_groups` and `of_edges` have the layer of each operator, group and edge of the problem.
    """

    def __init__(self, problem: SearchProblem, repetitions: Sequence[Repetition]) -> None:
        self.repetitions = repetitions
        graph = problem.context.graph
        every, edges = graph.operators, problem.edges
        self.of_operators = np.full(len(every), NOBODY)
        self.of_groups = np.full(len(problem.costs), NOBODY)
        self.of_edges = np.full(len(edges), NOBODY)
        self.segments = np.array(problem.context.segments)
        """The segment of each group, numbered without omitted layers."""
        renamed: dict[str, str] = {}
        moved: dict[int, int] = {}
        for number, r in enumerate(repetitions):
            layers = np.arange(r.count)
            slots = np.where(layers < EARLY, layers, layers - r.left_out) + number * KEPT
            slots[EARLY : EARLY + r.left_out] = GONE
            for of, first, each in (
                (self.of_operators, r.operator, r.period),
                (self.of_groups, r.group, r.groups),
                (self.of_edges, r.edge, r.edges),
            ):
                of[first : first + r.count * each] = np.repeat(slots, each)
            shift = self.segments[r.group + r.groups] - self.segments[r.group]
            later = r.group + (EARLY + r.left_out) * r.groups
            self.segments[later:] -= r.left_out * shift
            last = range(r.left_out, EARLY + r.left_out)
            for at in range(r.operator + last.start * r.period, r.operator + last.stop * r.period):
                before = every[at - r.left_out * r.period]
                renamed.update(zip(every[at].outputs, before.outputs, strict=True))
            for at in range(r.group + last.start * r.groups, r.group + last.stop * r.groups):
                moved[at] = at - r.left_out * r.groups
        self.whole: dict[str, Operator] = {}
        """Operators with other inputs than in the whole model, by name."""
        self.operators: list[Operator] = []
        self.layer: dict[str, int] = {}
        """The layer of each operator that is written, and of each buffer that one reads."""
        for op, slot in zip(every, self.of_operators.tolist(), strict=True):
            buffers = [name for name in op.inputs if graph.tensors[name].role == "buffer"]
            self.layer.update((name, slot) for name in buffers if name not in self.layer)
            if slot == GONE:
                continue
            self.layer[op.name] = slot
            if slot != NOBODY and any(name in renamed for name in op.inputs):
                self.whole[op.name] = op
                op = replace(op, inputs=tuple(renamed.get(name, name) for name in op.inputs))
            self.operators.append(op)
        changed = {op.name: op for op in self.operators if op.name in self.whole}
        self.groups = [
            _with_operators(group, changed)
            for group in problem.coarsened.groups
            if self.of_groups[group.index] != GONE
        ]
        self.edges = [
            KeptEdge(number, edge.source, edge.target, edge.tensors)
            if slot == NOBODY
            else KeptEdge(
                number,
                moved.get(edge.source, edge.source),
                edge.target,
                tuple(renamed.get(name, name) for name in edge.tensors),
            )
            for number, (edge, slot) in enumerate(zip(edges, self.of_edges.tolist(), strict=True))
            if slot != GONE
        ]


def _with_operators(group: Group, changed: dict[str, Operator]) -> Group:
    """Returns a group with other operators in the place of some, by name."""
    if not any(member.operator.name in changed for member in group.members):
        return group
    members = tuple(
        replace(m, operator=changed.get(m.operator.name, m.operator)) for m in group.members
    )
    return replace(group, members=members)


@dataclass(frozen=True)
class _Wiring:
    """Per operator its group and position in it (-1: in none), its inputs' gradients as a number,
    and per port the distance to and the port of the tensor's maker or first reader, as one number,
    and the tensor's number."""

    groups: Numbers
    places: Numbers
    gradients: Numbers
    distances: Numbers
    tensors: Numbers
    makers: Numbers
    """The operator that makes the tensor at each port, or -1."""


def repetitions_of(
    problem: SearchProblem, tables: Sequence[int], footprints: dict[str, Footprint]
) -> list[Repetition]:
    """Returns the repetitions whose layers are worth omitting, longest first; `tables` is each
    group's table number."""
    patterns = problem.context.patterns
    wiring = patterns.once("wiring", lambda: _wiring(patterns))
    finder = _Finder(problem, np.array(tables), footprints, wiring)
    found = []
    while (one := finder.longest()) is not None:
        found.append(one)
        finder.forget(one)
    left_out = sum(one.left_out * one.period for one in found)
    return found if left_out >= WORTH * len(problem.context.graph.operators) else []


class _Finder:
    """Finds repetitions, each among operators that are not yet in one."""

    def __init__(
        self,
        problem: SearchProblem,
        tables: Numbers,
        footprints: dict[str, Footprint],
        wiring: _Wiring,
    ) -> None:
        operators, context = problem.context.graph.operators, problem.context
        self._wiring = wiring
        self._segments = np.array(context.segments)
        self._targets = np.array([edge.target for edge in problem.edges], dtype=np.int64)
        self._count = len(operators)
        # The features in which equal operators agree, as one number.
        codes: dict[object, int] = {}
        rerun, patterns = context.rerun, context.patterns
        facts: list[object] = []
        for number, op in enumerate(operators):
            group, place = int(wiring.groups[number]), int(wiring.places[number])
            if len(op.inputs) > PORTS:
                facts.append(number)
                continue
            if group < 0:
                sizes = [context.graph.tensors[name] for name in (*op.inputs, *op.outputs)]
                facts.append(tuple((tensor.size_bytes, tensor.dtype) for tensor in sizes))
                continue
            member = problem.patterns[group].members[place]
            again = rerun.computes(member), rerun.takes_part(member)
            runs = patterns.has_backward(member), int(wiring.gradients[number])
            facts.append((int(tables[group]), place, again, runs, footprints[op.name]))
        self._codes = np.array([codes.setdefault(fact, len(codes)) for fact in facts])
        edge_of = {
            (n, edge.target): e for e, edge in enumerate(problem.edges) for n in edge.tensors
        }
        known: dict[int, int] = {}
        self._edge_tables = np.array(
            [known.setdefault(id(edge.table), len(known)) for edge in problem.edges] or [0]
        )
        self._edges = np.full(wiring.tensors.shape, -1)
        for number, op in enumerate(operators):
            for port, name in enumerate(op.inputs[:PORTS]):
                self._edges[number, port] = edge_of.get((name, int(wiring.groups[number])), -1)
        of = np.flatnonzero(wiring.groups >= 0)
        self._firsts, self._lasts = _spans(wiring.groups[of], of)
        self._free = np.ones(self._count, dtype=bool)

    def forget(self, one: Repetition) -> None:
        """Excludes the operators of a repetition."""
        self._free[one.operator : one.operator + one.count * one.period] = False

    def longest(self) -> Repetition | None:
        """Returns the repetition that omits the most operators."""
        free = np.flatnonzero(self._free)
        order = free[np.argsort(self._codes[free], kind="stable")]
        alike = self._codes[order[1:]] == self._codes[order[:-1]]
        distances = np.bincount((order[1:] - order[:-1])[alike], minlength=1)
        saved = distances * np.arange(len(distances))
        periods = np.argsort(-saved, kind="stable")[:CANDIDATES].tolist()
        found = [self._repetition(period) for period in periods if saved[period] > period]
        some = [one for one in found if one is not None]
        return max(some, key=lambda one: one.left_out * one.period, default=None)

    def _cuts(self, period: int) -> NDArray[np.bool_]:
        """Returns the operators, and the end, before which no group that spans less than a period
        continues."""
        opened = np.zeros(self._count + 2, dtype=np.int64)
        short = self._lasts - self._firsts < period
        np.add.at(opened, self._firsts[short] + 1, 1)
        np.add.at(opened, self._lasts[short] + 1, -1)
        return np.asarray(np.cumsum(opened)[:-1] == 0)

    def _repetition(self, period: int) -> Repetition | None:
        """Returns the longest repetition of a period, if layers can be omitted."""
        matches = np.flatnonzero(~self._matches(period))
        borders = np.concatenate(([-1], matches, [self._count - period]))
        longest = int(np.argmax(np.diff(borders)))
        start, stop = int(borders[longest]) + 1, int(borders[longest + 1]) + period
        is_cut = self._cuts(period)
        for first in range(start, min(start + 2 * period, stop)):
            count = (stop - first) // period
            if count - KEPT < EARLY:
                return None
            if is_cut[first : first + count * period + 1 : period].all():
                return self._numbered(first, period, count)
        return None

    def _matches(self, period: int) -> NDArray[np.bool_]:
        """Returns which operators equal those one period later."""
        w, count = self._wiring, self._count - period
        this, later = slice(0, count), slice(period, self._count)
        alike = (self._codes[this] == self._codes[later]) & self._free[this] & self._free[later]
        same = w.tensors[this] == w.tensors[later]
        far = w.distances[this] == w.distances[later]
        alike &= (same | far).all(axis=1)
        edges, next_edges = self._edges[this], self._edges[later]
        has, next_has = edges >= 0, next_edges >= 0
        alike &= (has == next_has).all(axis=1)
        tables = self._edge_tables
        equal = tables[np.maximum(edges, 0)] == tables[np.maximum(next_edges, 0)]
        alike &= (equal | ~has).all(axis=1)
        groups, next_groups = w.groups[this], w.groups[later]
        segments = self._segments[next_groups] - self._segments[groups]
        in_group = alike & (groups >= 0)
        for of, shifts in (
            (in_group, next_groups - groups),
            (in_group, segments),
            (alike[:, None] & has, next_edges - edges),
        ):
            if not of.any():
                continue
            values, often = np.unique(shifts[of], return_counts=True)
            right = ~of | (shifts == values[often.argmax()])
            alike &= right if right.ndim == 1 else right.all(axis=1)
        return np.asarray(alike)

    def _numbered(self, start: int, period: int, count: int) -> Repetition | None:
        """Returns a repetition with its groups and edges, if these are numbered layer by layer and
        only layers read what omitted layers make."""
        w = self._wiring
        stop = start + period * count
        of_layers = w.groups[start:stop].reshape(count, period)
        of_layers = of_layers[:, of_layers[0] >= 0]
        if not of_layers.size:
            return None
        first = int(of_layers[0].min())
        groups = len(np.unique(of_layers[0]))
        layers = np.arange(count)[:, None]
        if not ((of_layers - first) // groups == layers).all():
            return None
        outside = np.concatenate((w.groups[:start], w.groups[stop:]))
        if ((first <= outside) & (outside < first + groups * count)).any():
            return None
        targets = self._targets
        read = np.flatnonzero((first <= targets) & (targets < first + groups * count))
        edges, left = divmod(len(read), count)
        edge = int(read[0]) if len(read) else 0
        of_edges = (targets[read] - first) // groups
        if left or (read != np.arange(edge, edge + len(read))).any():
            return None
        if (of_edges != np.repeat(np.arange(count), edges)).any():
            return None
        found = Repetition(start, period, count, first, groups, edge, edges)
        gone = start + EARLY * period, start + (EARLY + found.left_out) * period
        made = (gone[0] <= w.makers) & (w.makers < gone[1])
        readers, ports = np.nonzero(made)
        late = readers >= gone[1]
        readers, ports = readers[late], ports[late]
        makers = w.makers[readers, ports]
        inside = (readers < min(stop, gone[1] + period)).all()
        inside &= (makers >= start + found.left_out * period).all()
        far = w.distances[readers, ports] == w.distances[readers - period, ports]
        return found if inside and far.all() else None


def _spans(of: Numbers, operators: Numbers) -> tuple[Numbers, Numbers]:
    """Returns the first and the last of the operators that each group has."""
    numbers, owner = np.unique(of, return_inverse=True)
    firsts = np.full(len(numbers), np.iinfo(np.int64).max)
    lasts = np.full(len(numbers), -1)
    np.minimum.at(firsts, owner, operators)
    np.maximum.at(lasts, owner, operators)
    return firsts, lasts


def _wiring(patterns: Patterns) -> _Wiring:
    graph = patterns.graph
    places = {
        m.operator.name: (group.index, place)
        for group in patterns.coarsened.groups
        for place, m in enumerate(group.members)
    }
    operators = graph.operators
    number = {op.name: n for n, op in enumerate(operators)}
    first: dict[str, tuple[int, int]] = {}
    tensors: dict[str, int] = {}
    shape = (len(operators), PORTS)
    distances, of_tensors, makers = np.full(shape, -1), np.full(shape, -1), np.full(shape, -1)
    gradients = np.zeros(len(operators), dtype=np.int64)
    for n, op in enumerate(operators):
        for port, name in enumerate(op.inputs):
            producer = graph.producer.get(name)
            if producer is None:
                maker, (there, at) = -1, first.setdefault(name, (n, port))
            else:
                maker = there = number[producer.name]
                at = producer.outputs.index(name)
            tensor = tensors.setdefault(name, len(tensors))
            if port < PORTS:
                distances[n, port], of_tensors[n, port] = (n - there) * MANY + at, tensor
                makers[n, port] = maker
                gradients[n] |= patterns.carries_gradient(name) << port
    found = [places.get(op.name, (-1, -1)) for op in operators]
    groups, of_group = np.array(found, dtype=np.int64).reshape(-1, 2).T
    return _Wiring(groups, of_group, gradients, distances, of_tensors, makers)
