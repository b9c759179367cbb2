"""A written step program as arrays, for replay, bounds and pages.

Numbers are those of the tape that was written (`tape.py`): tasks, buffers and flags from 0 on, in
the order in which they were written; flags that are set where two others are from -2 downwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import chain
from typing import Literal, NamedTuple, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from shardwise import _core
from shardwise.sharding.layout import Floats

T = TypeVar("T", bound=np.integer)

Numbers = NDArray[np.int64]

Order = Literal["program", "rank", "rank-within-memory"]
"""How a resource takes tasks: in the order of their numbers, or the most urgent ready one first."""

ALWAYS = -1


class Cell(NamedTuple):
    """One value: the column of a table, in the row that `owner` has chosen."""

    table: int
    owner: int
    column: int


Value = Cell | float


@dataclass(frozen=True, eq=False)
class Values(Sequence[Value]):
    """Values (n,), each a cell or a constant: `cells` (n, 3) are table, owner and column of each,
    -1 in those of `constants`, which are 0 in those of cells."""

    cells: Numbers
    constants: Floats

    @classmethod
    def of(cls, values: Iterable[Value]) -> Values:
        """Returns the same values as arrays."""
        every = list(values)
        none = (-1, -1, -1)
        rows = [value if isinstance(value, Cell) else none for value in every]
        constants = (0.0 if isinstance(value, Cell) else value for value in every)
        return cls(table(rows, 3, np.int64), np.fromiter(constants, np.float64, len(every)))

    @property
    def are_cells(self) -> NDArray[np.bool_]:
        """Which values are cells, (n,)."""
        return self.cells[:, 0] >= 0

    def __len__(self) -> int:
        return len(self.constants)

    @overload
    def __getitem__(self, at: int) -> Value: ...

    @overload
    def __getitem__(self, at: slice) -> list[Value]: ...

    def __getitem__(self, at: int | slice) -> Value | list[Value]:
        if isinstance(at, slice):
            return [self[number] for number in range(*at.indices(len(self)))]
        if self.cells[at, 0] < 0:
            return float(self.constants[at])
        return Cell(*self.cells[at].tolist())

    def __iter__(self) -> Iterator[Value]:
        for cell, constant in zip(self.cells.tolist(), self.constants.tolist(), strict=True):
            yield constant if cell[0] < 0 else Cell(*cell)

    def with_tables(self, numbers: Sequence[int], first: int) -> Values:
        """Returns the values with other tables, as `Record.with_tables`."""
        cells = self.cells.copy()
        of = np.flatnonzero(cells[:, 0] >= first)
        cells[of, 0] = np.array(numbers, dtype=np.int64)[cells[of, 1]]
        return Values(cells, self.constants)


@dataclass(frozen=True, eq=False)
class Record:
    """A program of n tasks, b buffers, f flags.

    `holds` are the resources of each task, `dependencies` (d, 2) in ascending order, `makers`,
    `lasting`, `device_classes` and `sizes` those of buffers, `uses` (u, 3) buffer, task and flag,
    `keeps` the buffers, each with a flag, that a name of several stands for, `pairs` (p, 2) the
    flags of which each flag of two is made, -2 first, `conditions` the flag of some tasks.
    """

    resources: list[Order]
    holds: Sequence[tuple[int, ...]]
    durations: Values
    labels: Sequence[str]
    dependencies: Numbers
    conditions: Mapping[int, int]
    makers: Numbers
    lasting: NDArray[np.bool_]
    device_classes: Numbers
    sizes: Values
    buffer_labels: Sequence[str]
    uses: Numbers
    keeps: dict[int, tuple[tuple[int, int], ...]]
    flags: Values
    pairs: Numbers

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Record):
            return NotImplemented
        return all(
            _plain(getattr(self, one.name)) == _plain(getattr(other, one.name))
            for one in fields(self)
        )

    @cached_property
    def streams(self) -> Numbers:
        """The first resource of each task; the only one, where computing is one resource."""
        return np.array([held[0] for held in self.holds], dtype=np.int64)

    def with_tables(self, numbers: Sequence[int], first: int) -> Record:
        """Returns the record with other tables where they have at least the number `first`; the
        cells of owner i are then in table `numbers[i]`."""
        values = {
            name: getattr(self, name).with_tables(numbers, first)
            for name in ("durations", "sizes", "flags")
        }
        return replace(self, **values)

    def program(self, marks: Sequence[int] = ()) -> _core.Program:
        """Returns the checked program. Its replays report when the tasks in `marks` ended."""
        given = len(self.flags)

        def numbered(flags: Numbers) -> Numbers:
            return np.where(flags >= ALWAYS, flags, given - 2 - flags)

        uses = np.column_stack((self.uses[:, :2], numbered(self.uses[:, 2])))
        kept = [(name, *one) for name, several in self.keeps.items() for one in several]
        keeps, conditions = table(kept, 3, np.int64), table(self.conditions.items(), 2, np.int64)
        for rows in (keeps, conditions):
            rows[:, -1] = numbered(rows[:, -1])
        held = np.fromiter(map(len, self.holds), np.int64, len(self.holds))
        resources = np.fromiter(chain.from_iterable(self.holds), np.int64, int(held.sum()))
        holds = np.column_stack((np.repeat(np.arange(len(held)), held), resources))
        return _core.Program(
            tasks=len(self.holds),
            resources=self.resources,
            holds=holds.astype(np.uint32),
            dependencies=self.dependencies.astype(np.uint32),
            makers=self.makers.astype(np.int32),
            lasting=self.lasting,
            uses=uses.astype(np.int32),
            given_flags=given,
            both=numbered(self.pairs).astype(np.uint32),
            marks=np.array(marks, dtype=np.uint32),
            device_classes=int(self.device_classes.max(initial=0)) + 1,
            buffer_classes=self.device_classes.astype(np.uint16),
            conditions=conditions.astype(np.int32),
            keeps=keeps.astype(np.int32),
        )


def _plain(value: object) -> object:
    """Returns a field of a record in a form that compares by content."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Values):
        return value.cells.tolist(), value.constants.tolist()
    return dict(value) if isinstance(value, Mapping) else list(value)  # type: ignore[call-overload]


def table(rows: Iterable[Sequence[int]], width: int, dtype: type[T]) -> NDArray[T]:
    """Returns whole numbers as an array (rows, width), several times as fast as `np.array`."""
    every = list(rows)
    numbers = np.fromiter(chain.from_iterable(every), dtype, len(every) * width)
    return numbers.reshape(-1, width)


@dataclass(frozen=True)
class Picks:
    """Which items are cells of one table: item, owner and column of each."""

    items: Numbers
    owners: Numbers
    columns: Numbers

    @cached_property
    def by_owner(self) -> tuple[Numbers, Numbers]:
        """The owners, ascending, and the position of each item's owner among them."""
        owners, places = np.unique(self.owners, return_inverse=True)
        return owners, places


class Gather:
    """Fills (points, items) from tables: constants once, cells by the row that the owner chose.

    `constants` has the shape (items,), 0 where an item is a cell; `picks` are the cells by table.
    """

    def __init__(self, values: Values) -> None:
        self.constants = values.constants
        tables, owners, columns = values.cells.T
        self.picks: dict[int, Picks] = {}
        found, first = np.unique(tables, return_index=True)
        for number in found[np.argsort(first)].tolist():
            if number >= 0:
                of = np.flatnonzero(tables == number)
                self.picks[number] = Picks(of, owners[of], columns[of])

    @cached_property
    def cells(self) -> _core.Cells:
        """The same, as replays take it."""
        return _core.Cells(
            self.constants,
            [(number, of.items, of.owners, of.columns) for number, of in self.picks.items()],
        )

    def some(self, items: Numbers) -> Gather:
        """Returns the gatherer of these items only, (N,), in this order."""
        places = np.full(len(self.constants), -1)
        places[items] = np.arange(len(items))
        other = Gather(Values.of(()))
        other.constants = self.constants[items]
        for number, of in self.picks.items():
            taken = places[of.items] >= 0
            if taken.any():
                at = places[of.items[taken]]
                other.picks[number] = Picks(at, of.owners[taken], of.columns[taken])
        return other

    def with_constants(self, constants: Floats) -> Gather:
        """Returns the same cells beside other constants, (items,)."""
        other = Gather(Values.of(()))
        other.constants, other.picks = constants, self.picks
        return other

    def fill(self, points: int, tables: dict[int, Floats], rows: dict[int, Numbers]) -> Floats:
        """Returns values (points, items); `rows[table]` has the shape (points, owners)."""
        return self.cells.fill(points, tables, rows)
