"""Lower bounds on the peak as costs of groups and edges: bytes surely held at one moment.

When a task of computation starts, a buffer is surely held if its maker ended before under every
schedule, and a use that counts comes at that task or after it under every schedule. Whether a use
counts depends on flags. A buffer whose size and flags belong to one group, or to an edge and its
two groups, is a cost of that group or edge; uses that others decide are left out, which keeps the
sum a lower bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwise.replay.owner_costs import NOTHING, OwnerCosts
from shardwise.replay.record import ALWAYS, Cell, Value
from shardwise.replay.replay import Replayer
from shardwise.replay.tape import BEFORE, COMPUTE
from shardwise.sharding.layout import Floats

Use = tuple[Cell, ...]
"""A use that counts where all of its flags are set."""

Place = tuple[str, int]
"""A column as an edge sees it: of the `edge` itself, its `source` or its `target`."""


class _Held(NamedTuple):
    """A buffer that is held at a moment if one of its uses counts."""

    size: Value
    uses: tuple[Use, ...]


class _Owner(NamedTuple):
    """A group or an edge, by number."""

    is_edge: bool
    number: int


OfGroup = tuple[tuple[int | None, float], tuple[tuple[int, ...], ...]]
"""A buffer that a group alone decides: its size (a column, or bytes), the columns of its uses."""

OfEdge = tuple[Place | float, tuple[tuple[Place, ...], ...]]
"""A buffer that an edge and its groups decide: its size (a column, or bytes), that of its uses."""


@dataclass(frozen=True)
class _GroupTerms:
    """Buffers decided by groups with the same table alone."""

    groups: tuple[int, ...]
    table: int
    terms: tuple[OfGroup, ...]


@dataclass(frozen=True)
class _EdgeTerms:
    """Buffers decided by equal edges and their groups."""

    edges: tuple[int, ...]
    terms: tuple[OfEdge, ...]


@dataclass(frozen=True)
class _Owned:
    """Lower bounds on the bytes held at a moment: a constant, and the rest by owner."""

    constant: float
    groups: tuple[_GroupTerms, ...]
    edges: tuple[_EdgeTerms, ...]


class Moments:
    """The moments of a replayer's program."""

    def __init__(self, replayer: Replayer) -> None:
        self._replayer = replayer
        self._problem = replayer.problem
        self._known: dict[int, OwnerCosts] = {}

    @cached_property
    def _program(self) -> _Program:
        """The program's part, shared by all problems with it."""
        return self._replayer.kit.derived.once("moments", lambda: _Program(self._replayer))

    @property
    def last_backward(self) -> int:
        """The task with which the last written backward pass begins."""
        return self._replayer.last_backward

    def task_of(self, task: int) -> int:
        """Returns the task of computation that is at a task or the last one before it."""
        return self._program.task_of(task)

    def held(self, task: int) -> OwnerCosts:
        """Returns a lower bound on the bytes held when a task of computation starts."""
        if task not in self._known:
            self._known[task] = self._costs(task)
        return self._known[task]

    def held_by_stages(self) -> tuple[OwnerCosts, OwnerCosts]:
        """Returns lower bounds on a stage's bytes for its groups and the edges between them when
        its last backward begins, and on the part that each micro-batch keeps from its forward;
        without constants, which not every stage has."""
        task, tape = self.last_backward, self._replayer.tape
        forward = self._replayer.passes[-1].forward_tasks
        # One by one, in their order; cells are 0 there.
        lasting = sum(tape.sizes.constants[tape.lasting].tolist())
        kept = self._costs(task, forward)
        return replace(self.held(task), constant=lasting), replace(kept, constant=0.0)

    def _costs(self, task: int, makers: range | None = None) -> OwnerCosts:
        """Returns the costs of what is surely held when a task starts, if `makers` is given only of
        what these made."""
        owned = self._program.owned(task, makers)
        groups: list[Floats] = [NOTHING] * len(self._problem.costs)
        edges: list[Floats] = [NOTHING] * len(self._problem.edges)
        for of_groups in owned.groups:
            held = self._of_groups(of_groups)
            for group in of_groups.groups:
                groups[group] = held
        for of_edges in owned.edges:
            held = self._of_edges(of_edges)
            for edge in of_edges.edges:
                edges[edge] = held
        return OwnerCosts(owned.constant, groups, edges)

    def _of_groups(self, of: _GroupTerms) -> Floats:
        """Returns the bytes of buffers that a group alone decides, shape (K,)."""
        values = self._replayer.group_values(of.table)
        total = np.zeros(len(self._problem.costs[of.groups[0]].time_s))
        for (column, constant), uses in of.terms:
            counts = np.zeros(len(total), dtype=bool)
            for use in uses:
                counts |= (values[:, list(use)] != 0.0).all(axis=1)
            total += counts * (constant if column is None else values[:, column])
        return total

    def _of_edges(self, of: _EdgeTerms) -> Floats:
        """Returns the bytes of buffers that an edge and its groups decide, shape (R, C, A)."""
        number = of.edges[0]
        total: Floats = np.zeros(self._problem.edges[number].table.kept.shape)
        for amount, uses in of.terms:
            counts = np.zeros(total.shape, dtype=bool)
            for use in uses:
                one = np.ones(total.shape, dtype=bool)
                for place in use:
                    one &= self._grid(number, place) != 0.0
                counts |= one
            total += counts * (self._grid(number, amount) if isinstance(amount, tuple) else amount)
        return total

    def _grid(self, number: int, place: Place) -> Floats:
        """Returns a column over the cells of an edge, broadcast to (R, C, A).

        Of a group it is the least of the configurations that share a row of the edge's table.
        """
        where, column = place
        edge, replayer = self._problem.edges[number], self._replayer
        if where == "edge":
            return replayer.values_of_edge(number).grid_of(column)
        at_source = where == "source"
        group = edge.source if at_source else edge.target
        rows: NDArray[np.uint32] = edge.table.rows if at_source else edge.table.columns
        least = np.full(edge.table.kept.shape[0 if at_source else 1], np.inf)
        np.minimum.at(least, rows, replayer.group_values(replayer.table_of_group(group))[:, column])
        return least[:, None, None] if at_source else least[None, :, None]


class _Program:
    """A program's buffers at its moments, by owner."""

    def __init__(self, replayer: Replayer) -> None:
        tape = self._tape = replayer.tape
        self._after, self._before = replayer.program.between()
        self._compute = np.flatnonzero(tape.streams == COMPUTE)
        self._makers = tape.makers
        self._used, self._by, self._flags = tape.uses.T
        self._given, self._pairs = tape.flags, tape.pairs.tolist()
        self._conjunctions: dict[int, Use] = {ALWAYS: ()}
        self._ends = [(edge.source, edge.target) for edge in replayer.problem.edges]
        self._table_of_edge = [replayer.table_of_edge(edge) for edge in range(len(self._ends))]
        groups = range(len(replayer.problem.costs))
        self._table_of_group = [replayer.table_of_group(group) for group in groups]
        self._first_of_edges = min(self._table_of_edge, default=len(self._table_of_group))
        self._known: dict[tuple[int, range | None], _Owned] = {}

    def task_of(self, task: int) -> int:
        """Returns the task of computation that is at a task or the last one before it."""
        return int(self._compute[max(int(self._after[task]) - 1, 0)])

    def owned(self, task: int, makers: range | None) -> _Owned:
        """Returns what is surely held when a task starts, of what `makers` have made if given."""
        key = (task, makers)
        if key not in self._known:
            self._known[key] = self._owned(task, makers)
        return self._known[key]

    def _owned(self, task: int, makers: range | None) -> _Owned:
        of: dict[_Owner, list[_Held]] = {}
        constant = 0.0
        for held in self._buffers(task, makers):
            owner = self._owner(held)
            if owner is not None:
                of.setdefault(owner, []).append(held)
            elif not isinstance(held.size, Cell) and () in held.uses:
                constant += held.size
        groups: dict[tuple[int, tuple[OfGroup, ...]], list[int]] = {}
        for group, table in enumerate(self._table_of_group):
            terms = self._terms_of_group(group, of.get(_Owner(False, group), []))
            groups.setdefault((table, terms), []).append(group)
        edges: dict[tuple[tuple[int, int, int], tuple[OfEdge, ...]], list[int]] = {}
        for edge, (source, target) in enumerate(self._ends):
            some = self._terms_of_edge(edge, of.get(_Owner(True, edge), []))
            if some:
                ends = (self._table_of_group[source], self._table_of_group[target])
                edges.setdefault(((self._table_of_edge[edge], *ends), some), []).append(edge)
        return _Owned(
            constant,
            tuple(_GroupTerms(tuple(of), *key) for key, of in groups.items()),
            tuple(_EdgeTerms(tuple(of), terms) for (_, terms), of in edges.items()),
        )

    def _buffers(self, task: int, made_by: range | None) -> list[_Held]:
        """Returns the buffers, all or those that some tasks have made, that may be held when the
        task starts."""
        node, makers, tape = self._after[task], self._makers, self._tape
        made = (makers == BEFORE) | (self._before[np.maximum(makers, 0)] <= node)
        surely = (tape.lasting & made) | (makers == task)
        if made_by is not None:
            among = (made_by.start <= makers) & (makers < made_by.stop)
            made, surely = made & among, surely & among
        counts = np.flatnonzero(made[self._used] & (self._after[self._by] >= node))
        flags: dict[int, dict[int, None]] = {}
        for buffer, flag in zip(
            self._used[counts].tolist(), self._flags[counts].tolist(), strict=True
        ):
            flags.setdefault(buffer, {})[flag] = None
        buffers = [_Held(tape.sizes[b], ((),)) for b in np.flatnonzero(surely).tolist()]
        uses = {
            buffer: dict.fromkeys(self._conjunction(flag) for flag in of)
            for buffer, of in flags.items()
        }
        for name, kept in reversed(tape.keeps.items()):
            for use in uses.pop(name, ()):
                for buffer, flag in kept:
                    if made[buffer]:
                        both = tuple(dict.fromkeys((*use, *self._conjunction(flag))))
                        if self._may_count(both):
                            uses.setdefault(buffer, {})[both] = None
        for buffer, of_buffer in uses.items():
            if not surely[buffer]:
                every = ((),) if () in of_buffer else tuple(of_buffer)
                buffers.append(_Held(tape.sizes[buffer], every))
        return buffers

    def _may_count(self, use: Use) -> bool:
        """Returns whether one group, or an edge with its groups, decides on a use."""
        owners = {self._owner_of(cell) for cell in use}
        edges = sum(owner.is_edge for owner in owners)
        return edges < 2 and len(owners) - edges < 3

    def _conjunction(self, flag: int) -> Use:
        """Returns the given flags that have to be set for a flag to be."""
        if flag not in self._conjunctions:
            if flag >= 0:
                given = self._given[flag]
                cells: Use = (given,) if isinstance(given, Cell) else ()
            else:
                a, b = self._pairs[-2 - flag]
                cells = tuple(dict.fromkeys((*self._conjunction(a), *self._conjunction(b))))
            self._conjunctions[flag] = cells
        return self._conjunctions[flag]

    def _owner_of(self, cell: Cell) -> _Owner:
        return _Owner(cell.table >= self._first_of_edges, cell.owner)

    def _owner(self, held: _Held) -> _Owner | None:
        """Returns the owner for which a buffer counts, or None."""
        flags = dict.fromkeys(self._owner_of(cell) for use in held.uses for cell in use)
        edges = [owner for owner in flags if owner.is_edge]
        if not isinstance(held.size, Cell):
            return next(iter(edges or flags), None)
        own = self._owner_of(held.size)
        alone = any(all(self._owner_of(cell) == own for cell in use) for use in held.uses)
        if own.is_edge or alone:
            return own
        for edge in edges:
            if own.number in self._ends[edge.number]:
                return edge
        return own

    def _terms_of_group(self, group: int, buffers: Sequence[_Held]) -> tuple[OfGroup, ...]:
        own = _Owner(False, group)
        terms: list[OfGroup] = []
        for held in buffers:
            uses = tuple(
                tuple(cell.column for cell in use)
                for use in held.uses
                if all(self._owner_of(cell) == own for cell in use)
            )
            column = held.size.column if isinstance(held.size, Cell) else None
            if uses:
                terms.append(((column, 0.0 if isinstance(held.size, Cell) else held.size), uses))
        return tuple(terms)

    def _terms_of_edge(self, edge: int, buffers: Sequence[_Held]) -> tuple[OfEdge, ...]:
        terms: list[OfEdge] = []
        for held in buffers:
            uses = tuple(use for one in held.uses if (use := self._places(edge, one)) is not None)
            size: Place | float | None = None
            if isinstance(held.size, Cell):
                size = next(iter(self._places(edge, (held.size,)) or ()), None)
            else:
                size = held.size
            if uses and size is not None:
                terms.append((size, uses))
        return tuple(terms)

    def _places(self, number: int, cells: Sequence[Cell]) -> tuple[Place, ...] | None:
        """Returns some cells' positions as seen by an edge, or None if one belongs to another
        owner."""
        source, target = self._ends[number]
        places: list[Place] = []
        for cell in cells:
            owner = self._owner_of(cell)
            if owner == _Owner(True, number):
                places.append(("edge", cell.column))
            elif owner == _Owner(False, source):
                places.append(("source", cell.column))
            elif owner == _Owner(False, target):
                places.append(("target", cell.column))
            else:
                return None
        return tuple(places)
