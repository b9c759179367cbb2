"""Replay of strategies: the peak memory and overlapped time of each (HeteroG §4.2, §5).

The search adds memory and time up. Replay runs the step that a strategy stands for: operators in
their order, forward and backward; tensors that are allocated and freed; communication on a stream
of its own. The peak of memory then has temporaries and the allocator's rounding in it, and no
longer counts activations and gradients that never exist at the same time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from math import inf
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from shardwise import _core
from shardwise.cost.assemble import SearchProblem
from shardwise.cost.step_settings import StepSettings
from shardwise.hardware.host import soft_maximum
from shardwise.replay.columns import GroupTable
from shardwise.replay.edge_values import EdgeValues
from shardwise.replay.kit import Kit, Kits, kit_for
from shardwise.replay.overlap import contended_time
from shardwise.replay.owner_costs import Choices, host_costs
from shardwise.replay.record import Gather
from shardwise.replay.structure import table_numbers
from shardwise.replay.tape import COMMUNICATION, COMPUTE, Urgency
from shardwise.sharding.layout import Floats

AT_ONCE = 128
"""Strategies replayed at a time; what none of them needs is omitted."""
COMMUNICATIONS = 2
"""All communication of a step, as a part of the tasks beside the streams."""

Rows = tuple[int, dict[int, Floats], dict[int, NDArray[np.int64]]]
"""Of P strategies: P, the tables of values by number, the row that each owner has chosen in each
table, (P, owners)."""

Values = tuple[Floats, Floats, NDArray[np.bool_]]
"""Of P strategies: durations (P, tasks), sizes (P, buffers), flags (P, flags)."""


@dataclass(frozen=True)
class Replayed:
    """Results for P strategies: arrays of shape (P,), bytes and seconds.

    `device_s` has communication overlapped, and what that costs where the profile has it, and the
    waiting for the latest rank at each communication where that was measured (`Hardware.waiting`);
    `time_s` the waiting for the host as well.
    `compute_s` and `communication_s` are how long the two streams were busy (their sum is the time
    that the search adds up), `exposed_s` how much longer the devices take than their computation,
    `host_s` how long the host launches work, which a step waits for (`hardware/host.py`),
    `peak_task` the task whose start reached the peak (-1: it was there before the first).
    """

    peak_bytes: Floats
    time_s: Floats
    device_s: Floats
    compute_s: Floats
    communication_s: Floats
    exposed_s: Floats
    host_s: Floats
    peak_task: NDArray[np.int64]

    @classmethod
    def of_none(cls) -> Replayed:
        """Returns the results for no strategy."""
        nothing = np.zeros(0)
        times = (nothing,) * 6
        return cls(nothing, *times, nothing.astype(np.int64))


@dataclass(frozen=True)
class Moment:
    """The peak of one strategy: the task at whose start it was reached, and what was held.

    `held` are (what, bytes), largest first; `tasks` are (task, stream, start, end, bytes held).
    """

    task: str
    peak_bytes: float
    held: tuple[tuple[str, float], ...]
    tasks: tuple[tuple[str, int, float, float, float], ...]


class StrategyReplayer(Protocol):
    """A replayer of a problem's strategies, on devices of one kind or several."""

    @property
    def problem(self) -> SearchProblem:
        """The problem whose configurations and alternatives strategies choose."""
        ...

    @property
    def tape(self) -> object:
        """Identifies the tasks: replayers with the same tape have the same ones."""
        ...

    def replay(self, choices: Choices, edge_choices: Choices) -> Replayed:
        """Replays P strategies: `choices` (P, groups), `edge_choices` (P, edges)."""
        ...

    def values(self, choices: Choices, edge_choices: Choices) -> Values:
        """Returns durations, sizes and flags of P strategies."""
        ...

    def host_times(self, choices: Choices, edge_choices: Choices) -> Floats:
        """Returns the host's launch time of each strategy, (P,) seconds per step."""
        ...

    def replay_values(self, values: Values, host_s: Floats) -> Replayed:
        """Replays P strategies from what `values` and `host_times` give of them."""
        ...


class Replayer:
    """Replays strategies of one search problem, sharing what is common.

    `kits` are cached programs of the same model; new ones are added. `made` is the program itself,
    if known; `urgency` decides on resources without a program order (`_core.Program.replay`). With
    `split` backward is in two parts.
    """

    def __init__(
        self,
        problem: SearchProblem,
        settings: StepSettings,
        kits: Kits | None = None,
        made: tuple[Kit, list[GroupTable]] | None = None,
        urgency: Urgency = "rank",
        *,
        split: bool = False,
    ) -> None:
        self.problem = problem
        self._urgency: Urgency = urgency
        self._settings = settings
        self.overlap = problem.context.hardware.overlap
        self._waiting = problem.context.hardware.waiting
        self.host = host_costs(problem)
        kit, self.group_tables = made or kit_for(
            problem, settings, {} if kits is None else kits, split=split
        )
        self.kit = kit
        self.tape, self.program, self.durations = kit.tape, kit.program, kit.durations
        self._sizes, self._flags = kit.sizes, kit.flags
        self.repeat, self.last_backward = kit.repeat, kit.last_backward
        self.passes = kit.passes
        self._labels, self._buffers = self.tape.labels, self.tape.buffer_labels
        self._streams = streams = self.tape.streams
        # The streams' busy time in the micro-batch that represents others, and all communication.
        first, last = (self.repeat.tasks.start, self.repeat.tasks.stop) if self.repeat else (0, 0)
        self._parts = (
            *(first + np.flatnonzero(streams[first:last] == s) for s in (COMPUTE, COMMUNICATION)),
            np.flatnonzero(streams == COMMUNICATION),
        )
        self._of_parts: dict[int, Gather] = {}
        self._group_values = {
            n: np.ascontiguousarray(table.values()) for n, table in enumerate(self.group_tables)
        }
        self._table_of_group, self._table_of_edge = table_numbers(problem)
        self._sources = np.array([e.source for e in problem.edges], dtype=np.int64)
        self._targets = np.array([e.target for e in problem.edges], dtype=np.int64)
        self._edges: dict[int, tuple[EdgeValues, NDArray[np.int64]]] = {}
        numbers = np.array(self._table_of_edge, dtype=np.int64)
        for number in dict.fromkeys(self._table_of_edge):
            of = np.flatnonzero(numbers == number)
            self._edges[number] = (EdgeValues(problem, problem.edges[of[0]]), of)

    @property
    def block_bytes(self) -> int:
        """The allocator's block size."""
        return self._settings.block_bytes

    @property
    def tasks(self) -> int:
        """Tasks of the program."""
        return self.program.tasks

    def table_of_group(self, group: int) -> int:
        """Returns the number of a group's table."""
        return self._table_of_group[group]

    def table_of_edge(self, edge: int) -> int:
        """Returns the number of an edge's table."""
        return self._table_of_edge[edge]

    def group_values(self, table: int) -> Floats:
        """Returns the columns of a table of groups, shape (K, columns)."""
        return self._group_values[table]

    def edge_values(self, table: int) -> EdgeValues | None:
        """Returns the values of a table of edges; None for a table of groups."""
        return self._edges[table][0] if table in self._edges else None

    def values_of_edge(self, number: int) -> EdgeValues:
        """Returns the values of an edge's table."""
        return self._edges[self.table_of_edge(number)][0]

    def replay(self, choices: Choices, edge_choices: Choices) -> Replayed:
        """Replays P strategies: `choices` (P, groups), `edge_choices` (P, edges)."""
        parts = []
        for start in range(0, max(len(choices), 1), AT_ONCE):
            part = slice(start, start + AT_ONCE)
            parts.append(self._replay(choices[part], edge_choices[part]))
        return Replayed(
            *(np.concatenate([getattr(p, field.name) for p in parts]) for field in fields(Replayed))
        )

    def _replay(self, choices: Choices, edge_choices: Choices) -> Replayed:
        rows = self._rows(choices, edge_choices)
        outcome = _core.replay_chosen(
            self.program,
            (self.durations.cells, self._sizes.cells, self._flags.cells),
            *rows,
            block_bytes=self._settings.block_bytes,
            urgency=self._urgency,
        )

        def durations(part: int) -> Floats:
            return np.asfortranarray(self._durations_of(part).fill(*rows))

        return self._replayed(durations, outcome, self.host_times(choices, edge_choices))

    def _durations_of(self, part: int) -> Gather:
        """Returns the gatherer of the durations of a part of the tasks."""
        if part not in self._of_parts:
            self._of_parts[part] = self.durations.some(self._parts[part])
        return self._of_parts[part]

    def host_times(self, choices: Choices, edge_choices: Choices) -> Floats:
        """Returns the host's launch time of each strategy, (P,) seconds per step."""
        if self.host is None:
            return np.zeros(len(choices))
        return self.host.of(self.problem, choices, edge_choices)

    def replay_values(self, values: Values, host_s: Floats) -> Replayed:
        """Replays P strategies from what `values` and `host_times` give of them."""
        return self.replayed(values, self.run(values), host_s)

    def run(self, values: Values) -> _core.Replays:
        """Runs the written program with the values of P strategies."""
        durations, sizes, flags = values
        return self.program.replay(
            durations,
            sizes,
            flags,
            block_bytes=self._settings.block_bytes,
            urgency=self._urgency,
        )

    def replayed(self, values: Values, outcome: _core.Replays, host_s: Floats) -> Replayed:
        """Returns the steps of P strategies from the `outcome` of `run`."""
        return self._replayed(lambda part: values[0][:, self._parts[part]], outcome, host_s)

    def _replayed(
        self,
        durations: Callable[[int], Floats],
        outcome: _core.Replays,
        host_s: Floats,
    ) -> Replayed:
        """`durations` returns those of one of the `_parts`, (P, tasks), task after task."""
        time, busy_s = outcome.time_s, outcome.busy_s
        compute, communication = busy_s[:, COMPUTE], busy_s[:, COMMUNICATION]
        if self.repeat is not None:
            times = self.repeat.times
            time = time + times * (outcome.mark_end_s[:, 1] - outcome.mark_end_s[:, 0])
            compute = compute + times * durations(COMPUTE).sum(axis=1)
            communication = communication + times * durations(COMMUNICATION).sum(axis=1)
        time = contended_time(time, compute, communication, self.overlap)
        if self._waiting is not None:
            time = time + self._waiting.per_step(
                compute, self._communications(durations(COMMUNICATIONS))
            )
        return Replayed(
            outcome.peak_bytes,
            soft_maximum(time, host_s),
            time,
            compute,
            communication,
            np.maximum(time - compute, 0.0),
            host_s,
            outcome.peak_task,
        )

    def periods(self, outcome: _core.Replays) -> tuple[Floats, Floats]:
        """Returns the devices' time for a step and for one more micro-batch in it, (P,) each,
        before the additions of `replayed`.

        Raises `ValueError` for a program without a micro-batch that represents others.
        """
        if self.repeat is None:
            raise ValueError(f"every micro-batch is written: there are at most {len(self.passes)}")
        period = outcome.mark_end_s[:, 1] - outcome.mark_end_s[:, 0]
        return outcome.time_s + self.repeat.times * period, period

    def collectives(self, durations: Floats) -> Floats:
        """Returns how often ranks communicate in one step of each strategy: (P,)."""
        return self._communications(durations[:, self._parts[COMMUNICATIONS]])

    def _communications(self, durations: Floats) -> Floats:
        """As `collectives`, of the tasks that communicate."""
        tasks = self._parts[COMMUNICATIONS]
        times = np.ones(len(tasks))
        if self.repeat is not None:
            stretch = self.repeat.tasks
            times[(stretch.start <= tasks) & (tasks < stretch.stop)] += self.repeat.times
        return np.asarray((durations > 0.0) @ times)

    def starts(self, choices: Choices, edge_choices: Choices, limit_bytes: float = inf) -> Floats:
        """Returns when each task of one strategy, (groups,) and (edges,), starts: (tasks,).

        `limit_bytes` holds where the program is scheduled within memory.
        """
        durations, sizes, flags = self.values(choices[None, :], edge_choices[None, :])
        _, timeline = self.program.trace(
            durations[0],
            sizes[0],
            flags[0],
            block_bytes=self._settings.block_bytes,
            limits_bytes=np.array([limit_bytes]),
            urgency=self._urgency,
        )
        return timeline.start_s

    def traced(
        self, choices: Choices, edge_choices: Choices
    ) -> tuple[_core.Replays, _core.Timeline]:
        """Replays one strategy, (groups,) and (edges,), and returns its schedule as well."""
        return self.trace_values(self.values(choices[None, :], edge_choices[None, :]))

    def trace_values(self, values: Values, number: int = 0) -> tuple[_core.Replays, _core.Timeline]:
        """Replays one of the strategies whose values are given, and returns its schedule as
        well."""
        durations, sizes, flags = values
        return self.program.trace(
            durations[number],
            sizes[number],
            flags[number],
            block_bytes=self._settings.block_bytes,
            urgency=self._urgency,
        )

    def moment(self, choices: Choices, edge_choices: Choices) -> Moment:
        """Returns the peak of one strategy: (groups,) and (edges,)."""
        values = self.values(choices[None, :], edge_choices[None, :])
        _, sizes, _ = values
        outcome, timeline = self.trace_values(values)
        task = int(outcome.peak_task[0])
        buffers = sorted(
            ((self._buffers[b], float(sizes[0, b])) for b in timeline.at_peak),
            key=lambda item: -item[1],
        )
        rows = zip(
            self._labels,
            self._streams.tolist(),
            timeline.start_s.tolist(),
            timeline.end_s.tolist(),
            timeline.held_bytes.tolist(),
            strict=True,
        )
        return Moment(
            "before the step" if task < 0 else self._labels[task],
            float(outcome.peak_bytes[0]),
            tuple(buffers),
            tuple(rows),
        )

    def values(self, choices: Choices, edge_choices: Choices) -> Values:
        """Returns durations (P, tasks), sizes (P, buffers) and flags (P, flags) of strategies."""
        rows = self._rows(choices, edge_choices)
        return (
            self.durations.fill(*rows),
            self._sizes.fill(*rows),
            self._flags.fill(*rows) != 0.0,
        )

    def _rows(self, choices: Choices, edge_choices: Choices) -> Rows:
        """Returns the tables with the rows that strategies choose in them."""
        points = len(choices)
        chosen = np.ascontiguousarray(choices, dtype=np.int64)
        alternatives = edge_choices.astype(np.int64)
        tables = dict(self._group_values)
        rows: dict[int, NDArray[np.int64]] = dict.fromkeys(tables, chosen)
        # Edges choose cells; a table holds those that occurred, and a row number selects one.
        for number, (values, of) in self._edges.items():
            cells = values.cells(
                chosen[:, self._sources[of]], chosen[:, self._targets[of]], alternatives[:, of]
            )
            tables[number], at = values.rows(cells)
            row = np.zeros((points, len(self._sources)), dtype=np.int64)
            row[:, of] = at
            rows[number] = row
        return points, tables, rows
