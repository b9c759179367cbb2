"""Replay of strategies on a cluster of several kinds: each place's peak, and the step's time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from dataclasses import field as dataclass_field

import numpy as np
from numpy.typing import NDArray

from shardwise import _core
from shardwise.cost.assemble import SearchProblem
from shardwise.cost.mixed.assemble import MixedProblem
from shardwise.cost.options import Progress, go_on, quiet
from shardwise.cost.step_settings import StepSettings
from shardwise.errors import InternalError
from shardwise.hardware.host import soft_maximum
from shardwise.replay.columns import GroupTable
from shardwise.replay.forward import constant_s
from shardwise.replay.kit import Kit, Kits, Written, kit_for
from shardwise.replay.mixed.program import MixedProgram, mixed_program
from shardwise.replay.overlap import contended_time
from shardwise.replay.owner_costs import Choices
from shardwise.replay.record import Gather
from shardwise.replay.replay import AT_ONCE, Replayed, Replayer, Values
from shardwise.replay.structure import numbered_tables
from shardwise.replay.tape import Urgency
from shardwise.sharding.layout import Floats


@dataclass(frozen=True)
class MixedKits:
    """Step programs of a model on several kinds of devices: those of one place (`of_one`), and
    those written from them for all places."""

    of_one: Kits = dataclass_field(default_factory=dict)
    _written: dict[tuple[int, bool, int], tuple[Kit, MixedProgram]] = dataclass_field(
        default_factory=dict
    )

    def program(self, kit: Kit, places: int) -> MixedProgram:
        """Returns the program of this many places, the same for all kits of one tape."""
        key = id(kit.tape), kit.repeat is None, places
        if key not in self._written:
            # With the kit, to keep its tape's id from being reused.
            self._written[key] = kit, mixed_program(kit, places)
        return self._written[key][1]


class MixedReplayer:
    """Replays strategies of a problem of several kinds.

    Memory is scaled to the smallest of the places' limits `limits_bytes`, so a strategy fits if its
    scaled peak is within that one. Durations of P strategies are those of all places one after
    another, (P, places · tasks).
    """

    def __init__(
        self,
        problem: MixedProblem,
        settings: StepSettings,
        limits_bytes: Floats,
        kits: MixedKits | None = None,
        progress: Progress = quiet,
        *,
        write: Written | None = None,
        urgency: Urgency = "rank",
    ) -> None:
        """`kits` are cached programs of the same model, used unless `write` writes the step of one
        place; `progress` may raise to end; `urgency` decides on resources without a program order
        (`_core.Program.replay`)."""
        self.problem = problem
        self._urgency: Urgency = urgency
        self.limits_bytes = limits_bytes
        self._settings = settings
        kits = kits or MixedKits()
        problems = [*problem.places, problem.joins]
        tables: list[list[GroupTable]] = []

        def of_first() -> list[GroupTable]:
            go_on(progress, "costs", 1.0)
            tables[:] = _tables_of(problems)
            return tables[0]

        if write is None:
            kit, _ = kit_for(problem.places[0], settings, kits.of_one, of_first)
        else:
            kit, _ = write(problem.places[0], settings, of_first())
        replayers = []
        for one, of_place in zip(problems, tables, strict=True):
            go_on(progress, "costs", 1.0)
            if of_place is not tables[0]:
                for table, structure in zip(of_place, kit.tables, strict=True):
                    if not table.follows(structure):
                        raise InternalError("places differ in what a step does")
            replayers.append(Replayer(one, settings, made=(kit, of_place)))
        self.places, self._joins = replayers[:-1], replayers[-1]
        for one, place in zip(problem.places, self.places, strict=True):
            place.durations = _with_constants(kit, one)
        self.kit = kit
        go_on(progress, "costs", 1.0)
        self.mixed = self.tape = kits.program(kit, len(self.places))
        self._columns = np.where(
            self.mixed.place >= 0, self.mixed.place * self.tasks + self.mixed.task, 0
        )

    @property
    def tasks(self) -> int:
        """Tasks of one place."""
        return self.kit.program.tasks

    @property
    def joins(self) -> Replayer:
        """The replayer in which only communication that joins places takes time."""
        return self._joins

    @property
    def scale(self) -> Floats:
        """The factor for each place's bytes, (places,)."""
        return np.asarray(self.limits_bytes.min() / self.limits_bytes)

    def replay(self, choices: Choices, edge_choices: Choices) -> Replayed:
        """Replays P strategies: `choices` (P, groups), `edge_choices` (P, edges)."""
        parts = []
        for start in range(0, max(len(choices), 1), AT_ONCE):
            part = slice(start, start + AT_ONCE)
            values = self.values(choices[part], edge_choices[part])
            host_s = self.host_times(choices[part], edge_choices[part])
            parts.append(self.replay_values(values, host_s))
        return Replayed(
            *(np.concatenate([getattr(p, field.name) for p in parts]) for field in fields(Replayed))
        )

    def host_times(self, choices: Choices, edge_choices: Choices) -> Floats:
        """Returns the busiest host's launch time of each strategy, (P,) seconds."""
        of_places = [place.host_times(choices, edge_choices) for place in self.places]
        return np.asarray(np.max(of_places, axis=0))

    def values(self, choices: Choices, edge_choices: Choices) -> Values:
        """Returns durations (P, places · tasks), sizes (P, places · buffers) and flags of P
        strategies: those of all places, then which communication joins places."""
        of_places = [place.values(choices, edge_choices) for place in self.places]
        durations, sizes, flags = zip(*of_places, strict=True)
        joins = self._joins.values(choices, edge_choices)[0][:, self.mixed.communicating] > 0.0
        return (
            np.concatenate(durations, axis=1),
            np.concatenate(sizes, axis=1),
            np.concatenate([*flags, joins], axis=1),
        )

    def replay_values(self, values: Values, host_s: Floats) -> Replayed:
        """Replays P strategies from what `values` and `host_times` give of them."""
        peaks, tasks, time_s, busy_s = self.outcome(values)
        compute, communication = busy_s[:, 0::2].max(axis=1), busy_s[:, 1::2].max(axis=1)
        time_s = self._lengthened(time_s, busy_s, values[0])
        scaled = peaks * self.scale
        place = scaled.argmax(axis=1)
        rows = np.arange(len(place))
        return Replayed(
            scaled[rows, place],
            soft_maximum(time_s, host_s),
            time_s,
            compute,
            communication,
            np.maximum(time_s - compute, 0.0),
            host_s,
            np.where(tasks[rows, place] < 0, -1, place * self.tasks + tasks[rows, place]),
        )

    def _lengthened(self, time_s: Floats, busy_s: Floats, durations: Floats) -> Floats:
        """Returns the step with measured contention and waiting for the latest rank, at the place
        where these are longest."""
        longest = time_s
        for number, place in enumerate(self.places):
            compute, communication = busy_s[:, 2 * number], busy_s[:, 2 * number + 1]
            hardware = place.problem.context.hardware
            time = contended_time(time_s, compute, communication, hardware.overlap)
            if hardware.waiting is not None:
                own = durations[:, number * self.tasks : (number + 1) * self.tasks]
                time = time + hardware.waiting.per_step(compute, place.collectives(own))
            longest = np.maximum(longest, time)
        return longest

    def outcome(self, values: Values) -> tuple[Floats, NDArray[np.int64], Floats, Floats]:
        """Returns for P strategies the peak of each place in bytes and the task of one place that
        reaches it (P, places), the time of the devices' step (P,), and the time for which each
        place computes and communicates (P, 2 · places)."""
        durations, sizes, flags = values
        outcome = self.mixed.program.replay(
            self._of_all(durations),
            sizes,
            flags,
            block_bytes=self._settings.block_bytes,
            urgency=self._urgency,
        )
        time_s, busy_s = outcome.time_s, outcome.busy_s[:, :-1].copy()
        if (repeat := self.kit.repeat) is not None:
            begins, ends = outcome.mark_end_s.reshape(len(time_s), 2, -1).transpose(1, 0, 2)
            time_s = time_s + repeat.times * (ends - begins).max(axis=1)
            busy_s += repeat.times * self._busy_in(durations, repeat.tasks)
        peak_task = outcome.class_peak_task
        tasks = np.where(peak_task < 0, -1, self.mixed.task[np.maximum(peak_task, 0)])
        return outcome.class_peak_bytes, tasks, time_s, busy_s

    def _of_all(self, durations: Floats) -> Floats:
        """Returns the durations of the tasks of the program of all places."""
        mixed = np.where(self.mixed.place >= 0, durations[:, self._columns], 0.0)
        return np.ascontiguousarray(mixed)

    def starts(self, choices: Choices, edge_choices: Choices) -> Floats:
        """Returns when each task of one strategy, (groups,) and (edges,), starts at each place:
        (places, tasks). Limits hold where the program is scheduled within memory."""
        _, timeline = self.traced(choices, edge_choices)
        starts = np.zeros((len(self.places), self.tasks))
        own = self.mixed.place >= 0
        starts[self.mixed.place[own], self.mixed.task[own]] = timeline.start_s[own]
        return starts

    def traced(
        self, choices: Choices, edge_choices: Choices
    ) -> tuple[_core.Replays, _core.Timeline]:
        """Replays one strategy, (groups,) and (edges,), and returns its schedule as well."""
        values = self.values(choices[None, :], edge_choices[None, :])
        return self.mixed.program.trace(
            self._of_all(values[0])[0],
            values[1][0],
            values[2][0],
            block_bytes=self._settings.block_bytes,
            limits_bytes=self.limits_bytes,
            urgency=self._urgency,
        )

    def _busy_in(self, durations: Floats, stretch: range) -> Floats:
        """Returns the busy time of each place's streams in a range of tasks, (P, 2 · places)."""
        streams = self.kit.tape.streams[stretch.start : stretch.stop]
        busy = []
        for place in range(len(self.places)):
            first = place * self.tasks
            own = durations[:, first + stretch.start : first + stretch.stop]
            busy += [own[:, streams == 0].sum(axis=1), own[:, streams != 0].sum(axis=1)]
        return np.stack(busy, axis=1)


def _tables_of(problems: Sequence[SearchProblem]) -> list[list[GroupTable]]:
    """Returns the tables of all places' problems."""
    tables = [numbered_tables(problem) for problem in problems]
    for of_group in zip(*tables, strict=True):
        for table in of_group:
            table.places = of_group
    return tables


def _with_constants(kit: Kit, problem: SearchProblem) -> Gather:
    """Returns the durations of a program with the times that constants take at a place."""
    seconds = {op.name: constant_s(problem.context, op) for op in problem.coarsened.constants}
    constants = kit.durations.constants.copy()
    for task, label in enumerate(kit.tape.labels):
        if label in seconds:
            constants[task] = seconds[label]
    return kit.durations.with_constants(constants)
