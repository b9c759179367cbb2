"""Extends the program of a few layers to the whole model (`layers.py`).

A layer's part is written once and renumbered for the omitted layers (`course.py`). This is valid if
neighbouring written layers have the same structure: each value is the same column of the same
table, each reference is either to the same thing or to a layer at the same distance. Otherwise
nothing is returned, and the whole program must be written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from shardwise.cost.assemble import SearchProblem
from shardwise.replay.course import ALIKE, TEMPLATE, Course, Space, Unlike
from shardwise.replay.layers import EARLY, GONE, Folded
from shardwise.replay.names import Labels, Names
from shardwise.replay.program import Pass, Repeat, StepProgram
from shardwise.replay.record import ALWAYS, Numbers, Record, Values

T = TypeVar("T", bound=np.generic)

MIDDLE = (TEMPLATE, EARLY)
"""The written layers between which the omitted ones belong."""


@dataclass(frozen=True)
class Stamped:
    """A whole program, as `StepProgram` has it."""

    record: Record
    repeat: Repeat | None
    last_backward: int
    passes: tuple[Pass, ...]
    update: range


def stamped(
    problem: SearchProblem, written: StepProgram, folded: Folded, first_edge_table: int
) -> Stamped | None:
    """Returns the program of a problem of which `written` has a few layers, if these determine it;
    edge tables are numbered from `first_edge_table`."""
    try:
        return _Stamp(problem, written, folded, first_edge_table).whole()
    except Unlike:
        return None


class _Items:
    """Items that are extended together: rows of a space, each written in a stretch."""

    def __init__(self, space: Space) -> None:
        self.space = space
        course = space.course
        self.lower, self.upper = space.neighbours
        self.repetition, self.rank = course.repetition[space.own], course.rank[space.own]

    def same(self, values: NDArray[T]) -> NDArray[T]:
        """Returns values that are the same in corresponding layers, (n, …), for all items."""
        if (values[self.lower] != values[self.upper]).any():
            raise Unlike
        return np.asarray(values[self.space.sources])


class _Stamp:
    def __init__(
        self, problem: SearchProblem, written: StepProgram, folded: Folded, first_edge_table: int
    ) -> None:
        self._problem, self._written, self._folded = problem, written, folded
        tape = written.structure.tape
        self._record = tape.record()
        self._first_edge_table = first_edge_table
        stretches = tape.stretches
        if self._record.conditions or stretches[0].before != (0,) * len(stretches[0].before):
            raise Unlike
        course = Course.of([stretch.layer for stretch in stretches], folded.repetitions)
        ends = tape.counts()
        counts = np.array([*(stretch.before for stretch in stretches), ends], dtype=np.int64)
        self._tasks, self._buffers, self._flags, self._pairs, self._uses, self._keeps = (
            _Items(Space(course, starts)) for starts in counts.T
        )
        self._groups = self._owners(folded.of_groups)
        self._edges = self._owners(folded.of_edges)
        self._names = Names(problem, folded)

    def _owners(self, layers: Numbers) -> tuple[Space, Numbers]:
        """Returns the space of owners of which these are the layers, and the number in it of each
        one that is written."""
        written = layers[layers != GONE]
        starts = np.flatnonzero(np.diff(written, prepend=-3))
        course = Course.of(written[starts].tolist(), self._folded.repetitions)
        return Space(course, np.append(starts, len(written))), np.cumsum(layers != GONE) - 1

    # References

    def _references(self, items: _Items, numbers: Numbers, space: Space) -> Numbers:
        """Returns all items' references in a space, from those of the written ones; -1 is kept."""
        sources, layers = items.space.sources, items.space.layers
        there = numbers >= 0
        if not there.any():
            return np.full(len(sources), -1)
        stretch = space.stretches(np.maximum(numbers, 0))
        is_shifted = self._shifted(items, numbers, space, stretch)
        course = space.course
        step = np.where(course.series[stretch] >= 0, course.step[stretch], 0)
        apart = course.rank[stretch] - items.rank
        base = course.base[stretch] + step * np.where(is_shifted, apart, course.layer_of(stretch))
        at = base[sources] + (step * is_shifted)[sources] * layers
        whole = space.whole_starts[at] + (numbers - space.starts[stretch])[sources]
        return np.where(there[sources], whole, -1)

    def _shifted(
        self, items: _Items, numbers: Numbers, space: Space, stretch: Numbers
    ) -> NDArray[np.bool_]:
        """Returns which items refer to a layer at a fixed distance; raises `Unlike` if neighbours
        neither do that nor refer to the same thing. `stretch` is where each written item's target
        was written."""
        result = np.zeros(len(numbers), dtype=bool)
        there = numbers >= 0
        course = space.course
        series = np.where(there, course.series[stretch], -1)
        repetition, rank = course.repetition[stretch], course.rank[stretch]
        offset = numbers - space.starts[stretch]
        lower, upper = items.lower, items.upper
        same = numbers[lower] == numbers[upper]
        shifted = (series[lower] >= 0) & (series[lower] == series[upper])
        shifted &= repetition[lower] == items.repetition[lower]
        shifted &= (rank[upper] == rank[lower] + 1) & (offset[lower] == offset[upper])
        if not (same | shifted).all():
            raise Unlike
        result[lower[shifted]] = True
        if (result[upper] != shifted).any():
            # One that is the upper of one pair is the lower of another, but for the last.
            last = items.rank[upper] == ALIKE.stop - 1
            if (result[upper] != shifted)[~last].any():
                raise Unlike
            result[upper[last & shifted]] = True
        # Common targets are not in the omitted layers; nothing else is referenced across these.
        is_middle = (series >= 0) & np.isin(rank, MIDDLE)
        alike = items.space.is_alike
        own = (repetition == items.repetition) & (items.repetition >= 0) & (series >= 0)
        across = own & ((rank < EARLY) != (items.rank < EARLY))
        if (is_middle & alike & ~result).any() or (is_middle & ~own).any():
            raise Unlike
        fixed = np.unique(numbers[alike & ~result & there])
        if (across & ~result & ~np.isin(numbers, fixed)).any():
            raise Unlike
        return result

    def _flag_references(self, items: _Items, flags: Numbers) -> Numbers:
        """Returns the flags of all items: given ones, those of two, or always."""
        given = self._references(items, np.where(flags >= 0, flags, -1), self._flags.space)
        both = self._references(items, np.where(flags < ALWAYS, -2 - flags, -1), self._pairs.space)
        items.same(np.sign(flags + 1))
        return np.where(both >= 0, -2 - both, given)

    def _values(self, items: _Items, values: Values) -> Values:
        """Returns the values of all items, by those of the written ones."""
        tables, owners, columns = values.cells.T
        cells = np.full((items.space.count, 3), -1)
        cells[:, 0], cells[:, 2] = items.same(tables), items.same(columns)
        is_edge = tables >= self._first_edge_table
        for (space, written), of in (
            (self._groups, (tables >= 0) & ~is_edge),
            (self._edges, is_edge),
        ):
            numbers = np.full(len(owners), -1)
            numbers[of] = written[owners[of]]
            whole = self._references(items, numbers, space)
            cells[:, 1] = np.where(whole >= 0, whole, cells[:, 1])
        return Values(cells, items.same(values.constants))

    # The whole program

    def whole(self) -> Stamped:
        """Returns the whole program."""
        record, tasks, buffers = self._record, self._tasks, self._buffers
        kinds = list(dict.fromkeys(record.holds))
        number = {held: n for n, held in enumerate(kinds)}
        holds = tasks.same(np.array([number[held] for held in record.holds]))
        whole = Record(
            resources=record.resources,
            holds=[kinds[n] for n in holds.tolist()],
            durations=self._values(tasks, record.durations),
            labels=self._labels(tasks, record.labels),
            dependencies=self._dependencies(),
            conditions={},
            makers=self._references(buffers, record.makers, tasks.space),
            lasting=buffers.same(record.lasting),
            device_classes=buffers.same(record.device_classes),
            sizes=self._values(buffers, record.sizes),
            buffer_labels=self._labels(buffers, record.buffer_labels),
            uses=self._of_uses(),
            keeps=self._kept(),
            flags=self._values(self._flags, record.flags),
            pairs=np.column_stack(
                [self._flag_references(self._pairs, flags) for flags in record.pairs.T]
            ),
        )
        written = self._written
        repeat = written.repeat
        if repeat is not None:
            begins, ends = self._task(repeat.begins), self._task(repeat.ends)
            repeat = Repeat(self._range(repeat.tasks), begins, ends, repeat.times)
        passes = tuple(
            Pass(
                self._of_operators(one.forward),
                self._of_operators(one.backward, backward=True),
                self._range(one.forward_tasks),
                self._range(one.weights_tasks) if one.weights_tasks else range(0),
            )
            for one in written.passes
        )
        return Stamped(
            whole, repeat, self._task(written.last_backward), passes, self._range(written.update)
        )

    def _of_uses(self) -> Numbers:
        of_buffers, of_tasks, flags = self._record.uses.T
        items = self._uses
        return np.column_stack(
            (
                self._references(items, of_buffers, self._buffers.space),
                self._references(items, of_tasks, self._tasks.space),
                self._flag_references(items, flags),
            )
        )

    def _kept(self) -> dict[int, tuple[tuple[int, int], ...]]:
        kept = [(name, *one) for name, some in self._record.keeps.items() for one in some]
        names, of_buffers, flags = np.array(kept, dtype=np.int64).reshape(-1, 3).T
        items, space = self._keeps, self._buffers.space
        rows = zip(
            self._references(items, names, space).tolist(),
            self._references(items, of_buffers, space).tolist(),
            self._flag_references(items, flags).tolist(),
            strict=True,
        )
        whole: dict[int, list[tuple[int, int]]] = {}
        for name, buffer, flag in rows:
            whole.setdefault(name, []).append((buffer, flag))
        return {name: tuple(some) for name, some in whole.items()}

    def _dependencies(self) -> Numbers:
        """Returns which tasks wait for which, in ascending order."""
        before, after = self._record.dependencies.T
        order = np.lexsort((before, after))
        before, after = before[order], after[order]
        space = self._tasks.space
        course = space.course
        # A task of no layer that waits for all written layers also waits for the omitted ones.
        stretch, maker = space.stretches(after), space.stretches(before)
        rank = np.where(course.series[stretch] < 0, course.rank[maker], -1)
        low, high = rank == TEMPLATE, rank == EARLY
        some = before[low] - space.starts[maker[low]], course.series[maker[low]], after[low]
        others = before[high] - space.starts[maker[high]], course.series[maker[high]], after[high]
        if sorted(zip(*some, strict=True)) != sorted(zip(*others, strict=True)):
            raise Unlike
        of_all = low | high
        rows = [self._waiting(before[~of_all], after[~of_all])]
        if high.any():
            later = self._waiting(before[high], after[high], middle=True)
            rows.append(later)
        if low.any():
            rows.append(self._fanned(before[low], after[low]))
        whole = np.concatenate(rows)
        return whole[np.lexsort((whole[:, 1], whole[:, 0]))]

    def _waiting(self, before: Numbers, after: Numbers, *, middle: bool = False) -> Numbers:
        space = self._tasks.space
        if middle:
            layers = space.course.layer_of(space.stretches(before))
            return np.column_stack((space.whole(before, layers), space.whole(after, 0 * after)))
        starts = np.searchsorted(after, space.starts)
        items = _Items(Space(space.course, starts))
        return np.column_stack(
            [self._references(items, numbers, space) for numbers in (before, after)]
        )

    def _fanned(self, before: Numbers, after: Numbers) -> Numbers:
        """Returns dependencies of tasks of no layer on those of the template and all omitted
        layers."""
        space = self._tasks.space
        course = space.course
        left_out = course.left_out[course.repetition[space.stretches(before)]]
        rows = []
        for number, waits, count in zip(
            before.tolist(), after.tolist(), left_out.tolist(), strict=True
        ):
            layers = np.arange(TEMPLATE, TEMPLATE + count + 1)
            of = space.whole(np.full(len(layers), number), layers)
            to = space.whole(np.full(len(layers), waits), layers)
            rows.append(np.column_stack((of, to)))
        return np.concatenate(rows)

    def _labels(self, items: _Items, labels: Sequence[str]) -> Sequence[str]:
        space = items.space
        return Labels(
            self._names, labels, space.sources, space.layers, items.rank,
            (items.lower, items.upper),
        )  # fmt: skip

    # Single tasks

    def _task(self, number: int) -> int:
        if number < 0:
            return number
        space = self._tasks.space
        stretch = space.stretches(np.array([number]))
        if space.course.series[stretch[0]] >= 0 and space.course.rank[stretch[0]] in MIDDLE:
            raise Unlike
        return int(space.whole(np.array([number]), space.course.layer_of(stretch))[0])

    def _range(self, of: range) -> range:
        space = self._tasks.space
        return range(space.boundary(of.start), space.boundary(of.stop))

    def _of_operators(self, tasks: Mapping[str, int], *, backward: bool = False) -> dict[str, int]:
        """Returns the task of every operator, by those of the written ones, in their order."""
        operators = self._problem.context.graph.operators
        found = np.full(len(operators), -1)
        kept = np.flatnonzero(self._folded.of_operators != GONE)
        written = [tasks.get(operators[number].name, -1) for number in kept.tolist()]
        numbers = np.array(written, dtype=np.int64)
        there = numbers >= 0
        space = self._tasks.space
        stretch = space.stretches(numbers[there])
        found[kept[there]] = space.whole(numbers[there], space.course.layer_of(stretch))
        for r in self._folded.repetitions:
            first = r.operator + TEMPLATE * r.period
            template = np.array(
                [tasks.get(op.name, -1) for op in operators[first : first + r.period]]
            )
            some = np.flatnonzero(template >= 0)
            layers = np.arange(EARLY, EARLY + r.left_out)
            whole = space.whole(np.tile(template[some], r.left_out), np.repeat(layers, len(some)))
            at = r.operator + layers[:, None] * r.period + some
            found[at.ravel()] = whole
        every = np.flatnonzero(found >= 0)
        if backward:
            every = every[::-1]
        names = [operators[number].name for number in every.tolist()]
        return dict(zip(names, found[every].tolist(), strict=True))
