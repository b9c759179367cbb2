"""A step program as it is written: tasks, buffers, uses and flags, and where their values are.

Values (seconds, bytes, flags) are columns of tables; a table has one row per choice of its owner
(a group's configuration, an edge's pair of configurations). A strategy chooses the row of each
owner, so the structure is written once (`program.py`) and a strategy only gathers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from shardwise import _core

T = TypeVar("T", bound=np.integer)

Order = Literal["program", "rank", "rank-within-memory"]
"""How a resource takes tasks: in the order of their numbers, or the most urgent ready one first."""

Urgency = Literal["rank", "depth", "fifo"]
"""Which ready task goes first where a resource does not keep the program's order."""

COMPUTE, COMMUNICATION = 0, 1
"""The resources that every tape has: computing in program order, communication by rank."""
TO_HOST, HOST, FROM_HOST = 2, 3, 4
"""Those that a step with states on the host has besides: copies each way, and the host's update."""
ALWAYS = -1
BEFORE = -1
"""The maker of buffers that exist before the first task."""


class Cell(NamedTuple):
    """One value: the column of a table, in the row that `owner` has chosen."""

    table: int
    owner: int
    column: int


Value = Cell | float


@dataclass
class Tape:
    """An append-only record. Every method that writes returns the number of what it wrote."""

    resources: list[Order] = field(default_factory=lambda: ["program", "rank"])
    holds: list[tuple[int, ...]] = field(default_factory=list)
    durations: list[Value] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    dependencies: set[tuple[int, int]] = field(default_factory=set)
    conditions: dict[int, int] = field(default_factory=dict)
    makers: list[int] = field(default_factory=list)
    lasting: list[bool] = field(default_factory=list)
    device_classes: list[int] = field(default_factory=list)
    sizes: list[Value] = field(default_factory=list)
    buffer_labels: list[str] = field(default_factory=list)
    uses: dict[tuple[int, int, int], None] = field(default_factory=dict)
    keeps: dict[int, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    """The buffers, each with a flag, that a name of several stands for."""
    flags: dict[Cell, int] = field(default_factory=dict)
    _both: dict[tuple[int, int], int] = field(default_factory=dict)

    @property
    def streams(self) -> list[int]:
        """The first resource of each task; the only one, where computing is one resource."""
        return [held[0] for held in self.holds]

    @property
    def keeps_order(self) -> bool:
        """Whether computing is in the program's order."""
        return self.resources[COMPUTE] == "program"

    def resource(self, order: Order) -> int:
        """Adds a resource."""
        self.resources.append(order)
        return len(self.resources) - 1

    def task(
        self,
        label: str,
        resources: int | tuple[int, ...],
        duration: Value,
        after: Iterable[int] = (),
        *,
        condition: int = ALWAYS,
    ) -> int:
        """Writes a task that starts when those in `after` have ended (`BEFORE` is not a task).

        It holds its resource, or several at once, while it runs. Where the flag `condition` is not
        set, the step is that of a tape without the task and its uses. A task with a condition makes
        no buffer and holds no resource with the order "program".
        """
        number = len(self.holds)
        self.holds.append((resources,) if isinstance(resources, int) else resources)
        self.durations.append(duration)
        self.labels.append(label)
        self.dependencies.update((before, number) for before in after if before != BEFORE)
        if condition != ALWAYS:
            self.conditions[number] = condition
        return number

    def last_compute(self) -> int:
        """Returns the latest task that holds `COMPUTE`, or `BEFORE`; that too where computing is in
        no order, and no task the latest."""
        if not self.keeps_order:
            return BEFORE
        for task in range(len(self.holds) - 1, -1, -1):
            if COMPUTE in self.holds[task]:
                return task
        return BEFORE

    def buffer(
        self,
        label: str,
        maker: int,
        size: Value,
        *,
        lasting: bool = False,
        device_class: int = 0,
    ) -> int:
        """Writes a buffer that task `maker` allocates on devices of a class."""
        self.makers.append(maker)
        self.sizes.append(size)
        self.lasting.append(lasting)
        self.device_classes.append(device_class)
        self.buffer_labels.append(label)
        return len(self.makers) - 1

    def use(self, buffer: int, task: int, flag: int = ALWAYS) -> None:
        """Holds `buffer` until `task` has ended, where the flag is set."""
        if (buffer, task, ALWAYS) not in self.uses:
            self.uses[buffer, task, flag] = None

    def either(self, buffers: Sequence[tuple[int, int]]) -> int:
        """Writes a name of several buffers, each with a flag, as a buffer without bytes: what uses
        the name uses those whose flags are set."""
        name = self.buffer(f"one of {len(buffers)} buffers", BEFORE, 0.0)
        self.keeps[name] = tuple(buffers)
        return name

    def used(self) -> set[int]:
        """Returns the buffers that have uses."""
        used = {buffer for buffer, _, _ in self.uses}
        for name, kept in reversed(self.keeps.items()):
            if name in used:
                used.update(buffer for buffer, _ in kept)
        return used

    def flag(self, cell: Cell) -> int:
        """Returns a flag whose value comes from the strategy."""
        return self.flags.setdefault(cell, len(self.flags))

    def both(self, a: int, b: int) -> int:
        """Returns a flag that is set where both are. Such flags are numbered from -2 downwards."""
        if a in (ALWAYS, b):
            return b
        if b == ALWAYS:
            return a
        key = (min(a, b), max(a, b))
        return self._both.setdefault(key, -2 - len(self._both))

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """The flags of which each flag of `both` is made, -2 first."""
        return list(self._both)

    def with_tables(self, numbers: Sequence[int], first: int) -> Tape:
        """Returns the record with other tables where they have at least the number `first`; the
        cells of owner i are then in table `numbers[i]`."""

        def value(of: Value) -> Value:
            return cell(of) if isinstance(of, Cell) else of

        def cell(of: Cell) -> Cell:
            return Cell(numbers[of.owner], *of[1:]) if of.table >= first else of

        return replace(
            self,
            durations=[value(duration) for duration in self.durations],
            sizes=[value(size) for size in self.sizes],
            flags={cell(of): flag for of, flag in self.flags.items()},
        )

    def program(self, marks: Sequence[int] = ()) -> _core.Program:
        """Returns the checked program. Its replays report when the tasks in `marks` ended."""

        def number(flag: int) -> int:
            return flag if flag >= ALWAYS else len(self.flags) - 2 - flag

        uses = [(buffer, task, number(flag)) for buffer, task, flag in self.uses]
        keeps = [(name, b, number(flag)) for name, kept in self.keeps.items() for b, flag in kept]
        both = [(number(a), number(b)) for a, b in self._both]
        conditions = [(task, number(flag)) for task, flag in self.conditions.items()]
        holds = [(task, resource) for task, held in enumerate(self.holds) for resource in held]
        return _core.Program(
            tasks=len(self.holds),
            resources=self.resources,
            holds=_table(holds, 2, np.uint32),
            dependencies=_table(sorted(self.dependencies), 2, np.uint32),
            makers=np.array(self.makers, dtype=np.int32),
            lasting=np.array(self.lasting, dtype=bool),
            uses=_table(uses, 3, np.int32),
            given_flags=len(self.flags),
            both=_table(both, 2, np.uint32),
            marks=np.array(marks, dtype=np.uint32),
            device_classes=max(self.device_classes, default=0) + 1,
            buffer_classes=np.array(self.device_classes, dtype=np.uint16),
            conditions=_table(conditions, 2, np.int32),
            keeps=_table(keeps, 3, np.int32),
        )


def _table(rows: Sequence[tuple[int, ...]], width: int, dtype: type[T]) -> NDArray[T]:
    """Returns whole numbers as an array (rows, width), several times as fast as `np.array`."""
    numbers = np.fromiter(chain.from_iterable(rows), dtype, len(rows) * width)
    return numbers.reshape(-1, width)


@dataclass(frozen=True)
class Picks:
    """Which items are cells of one table: item, owner and column of each."""

    items: NDArray[np.int64]
    owners: NDArray[np.int64]
    columns: NDArray[np.int64]

    @cached_property
    def by_owner(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The owners, ascending, and the place of each item's owner among them."""
        owners, places = np.unique(self.owners, return_inverse=True)
        return owners, places


class Gather:
    """Fills (points, items) from tables: constants once, cells by the row that the owner chose.

    `constants` has the shape (items,), 0 where an item is a cell; `picks` are the cells by table.
    """

    def __init__(self, values: Iterable[Value]) -> None:
        every = list(values)
        constants = (0.0 if isinstance(value, Cell) else value for value in every)
        self.constants = np.fromiter(constants, np.float64, len(every))
        items = np.array([n for n, value in enumerate(every) if isinstance(value, Cell)], np.int64)
        cells = [value for value in every if isinstance(value, Cell)]
        tables, owners, columns = _table(cells, 3, np.int64).T
        self.picks: dict[int, Picks] = {}
        for table in dict.fromkeys(tables.tolist()):
            of = np.flatnonzero(tables == table)
            self.picks[table] = Picks(items[of], owners[of], columns[of])

    @cached_property
    def cells(self) -> _core.Cells:
        """The same, as replays take it."""
        return _core.Cells(
            self.constants,
            [(table, of.items, of.owners, of.columns) for table, of in self.picks.items()],
        )

    def some(self, items: NDArray[np.int64]) -> Gather:
        """Returns what fills these items alone, (N,), in this order."""
        places = np.full(len(self.constants), -1)
        places[items] = np.arange(len(items))
        other = Gather(())
        other.constants = self.constants[items]
        for table, of in self.picks.items():
            taken = places[of.items] >= 0
            if taken.any():
                at = places[of.items[taken]]
                other.picks[table] = Picks(at, of.owners[taken], of.columns[taken])
        return other

    def with_constants(self, constants: NDArray[np.float64]) -> Gather:
        """Returns the same cells beside other constants, (items,)."""
        other = Gather(())
        other.constants, other.picks = constants, self.picks
        return other

    def fill(
        self,
        points: int,
        tables: dict[int, NDArray[np.float64]],
        rows: dict[int, NDArray[np.int64]],
    ) -> NDArray[np.float64]:
        """Returns values (points, items); `rows[table]` has the shape (points, owners)."""
        return self.cells.fill(points, tables, rows)
