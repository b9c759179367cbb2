"""A step program while it is written: tasks, buffers, uses, flags, and the sources of their values.

Values (seconds, bytes, flags) are columns of tables with one row per choice of the owner (a group's
configuration, an edge's pair of configurations). A strategy chooses each owner's row, so the
structure is written once (`program.py`) and a strategy only gathers values.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from shardwise import _core
from shardwise.replay.record import ALWAYS, Cell, Order, Record, Value, Values, table

Urgency = Literal["rank", "depth", "fifo"]
"""Which ready task goes first on resources without a program order."""

COMPUTE, COMMUNICATION = 0, 1
"""The resources that every tape has: computing in program order, communication by rank."""
TO_HOST, HOST, FROM_HOST = 2, 3, 4
"""Further resources of steps with states on the host: copies each way, and the host's update."""
NOBODY = -1
"""Instead of a layer."""
BEFORE = -1
"""The maker of buffers that exist before the first task."""


class Counts(NamedTuple):
    """The sizes of a tape: numbered items, and uses."""

    tasks: int
    buffers: int
    flags: int
    pairs: int
    uses: int
    keeps: int


class Stretch(NamedTuple):
    """A stretch of a tape: its phase, its layer (`layers.py`), and the sizes before it."""

    phase: int
    layer: int
    before: Counts


@dataclass
class Tape:
    """An append-only record. Methods that write return the number of the new item."""

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
    stretches: list[Stretch] = field(default_factory=list)
    _kept: int = 0

    def phase(self) -> None:
        """Begins a phase: one pass over what is written for each layer."""
        number = self.stretches[-1].phase + 1 if self.stretches else 0
        self.stretches.append(Stretch(number, NOBODY, self.counts()))

    def of_layer(self, layer: int) -> None:
        """Sets the layer of what follows in this phase."""
        if self.stretches and layer != self.stretches[-1].layer:
            self.stretches.append(Stretch(self.stretches[-1].phase, layer, self.counts()))

    def counts(self) -> Counts:
        """Returns the sizes so far."""
        return Counts(
            len(self.holds), len(self.makers), len(self.flags), len(self._both), len(self.uses),
            self._kept,
        )  # fmt: skip

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
        """Holds `buffer` until `task` has ended, if the flag is set."""
        if (buffer, task, ALWAYS) not in self.uses:
            self.uses[buffer, task, flag] = None

    def either(self, buffers: Sequence[tuple[int, int]]) -> int:
        """Writes a name of several buffers, each with a flag, as a buffer without bytes: what uses
        the name uses those whose flags are set."""
        name = self.buffer(f"one of {len(buffers)} buffers", BEFORE, 0.0)
        self.keeps[name] = tuple(buffers)
        self._kept += len(buffers)
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

    def record(self) -> Record:
        """Returns the written record."""
        return Record(
            resources=self.resources,
            holds=self.holds,
            durations=Values.of(self.durations),
            labels=self.labels,
            dependencies=table(sorted(self.dependencies), 2, np.int64),
            conditions=self.conditions,
            makers=np.array(self.makers, dtype=np.int64),
            lasting=np.array(self.lasting, dtype=bool),
            device_classes=np.array(self.device_classes, dtype=np.int64),
            sizes=Values.of(self.sizes),
            buffer_labels=self.buffer_labels,
            uses=table(self.uses, 3, np.int64),
            keeps=self.keeps,
            flags=Values.of(self.flags),
            pairs=table(self._both, 2, np.int64),
        )

    def program(self, marks: Sequence[int] = ()) -> _core.Program:
        """Returns the checked program. Its replays report when the tasks in `marks` ended."""
        return self.record().program(marks)
