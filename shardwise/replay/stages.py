"""Replay of the stages of a pipeline, each on its own.

A strategy of the whole model on one stage's devices is also one of each stage: groups of other
stages take no time and no memory. The program is that of the whole model, so a stage's step has the
same tasks in the same order with the same overlap. A crossing belongs to the stage that reads the
tensor, which arrives in the maker's layout.

A stage's step of A micro-batches, one after another, is divided into A (f + b) + u: forward and
backward of a micro-batch, and the rest, which is the synchronisation of gradients and the update.
Launching counts as work of the passes: with P the device's time of a micro-batch and H the host's
of the step, A (f + b) is the soft maximum of A P and H (`hardware/host.py`). In a pipeline
(`pipeline/simulate.py`) passes run in another order, and more micro-batches are kept.

If a rank has several stages, they are replayed together for the end of the step and the permanent
memory. Stages with the same costs, choices and crossings are replayed once.

Seconds and bytes of the parts of a micro-batch are read from the replays (`stage_parts.py`).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from shardwise.hardware.host import soft_maximum
from shardwise.replay.owner_costs import Choices, OwnerCosts
from shardwise.replay.record import Values as ProgramValues
from shardwise.replay.replay import Replayer, Values
from shardwise.replay.stage_parts import FORWARD, WEIGHTS, PartsReader, StageParts
from shardwise.sharding.layout import Floats

EVERYWHERE = -1
"""The unit of tasks that every stage has: constants and what they are made of."""

FEWEST = 4
"""Minimum micro-batches to measure a period (`replay.program.WRITTEN` and one more)."""

TINY = 1e-30
"""Smallest divisor, in seconds."""

FORMS = ("{}", "temporary of {}", "gradient of {} in float32", "root of {}", "denominator of {}")
"""Labels of buffers shared by copies of a tied parameter."""

UPDATES = ("update", "spread", "finish gradient of", "reduce")
"""The program's tasks at the end of a step for a parameter."""


@dataclass(frozen=True)
class ReplayedStages:
    """The times of S stages: seconds of a micro-batch and of the step's end, shape (S,); `parts` of
    them, and `of_ranks` of all stages of a rank together, one micro-batch through all of them at a
    time. The `update_s` of a rank's stages add up to the rank's. `splits`: `backward_s` is the sum
    of two parts."""

    forward_s: Floats
    backward_s: Floats
    update_s: Floats
    parts: StageParts
    of_ranks: StageParts
    splits: bool

    @property
    def kept_bytes(self) -> Floats:
        """The bytes that each micro-batch keeps, without incoming tensors, (S,)."""
        return self.parts.kept_bytes

    @property
    def lasting_bytes(self) -> Floats:
        """The bytes from the first backward on: parameters, gradients, optimizer states, (S,)."""
        return self.parts.lasting_bytes

    @property
    def peak_bytes(self) -> Floats:
        """The peaks of one micro-batch at a time, (S,)."""
        return self.parts.most_bytes

    @property
    def weights_s(self) -> Floats:
        """The seconds of backward that are gradients of weights, 0 where it is not split."""
        if not self.splits:
            return np.zeros_like(self.backward_s)
        periods_s = self.forward_s + self.backward_s
        return np.minimum(periods_s * self.parts.shares[:, WEIGHTS], self.backward_s)

    @property
    def inputs_s(self) -> Floats:
        """The rest of backward."""
        return np.asarray(self.backward_s - self.weights_s)

    @classmethod
    def joined(cls, parts: Mapping[int, ReplayedStages], part_of: Sequence[int]) -> ReplayedStages:
        """Returns stages of several replays, one per rank: stage s is the next one of part
        `part_of[s]`. Backward is whole in all of them."""
        places = np.array([list(part_of[:s]).count(part) for s, part in enumerate(part_of)])
        rows = [(parts[p], n) for p, n in zip(part_of, places.tolist(), strict=True)]

        def of(name: str) -> Floats:
            return np.array([getattr(part, name)[n] for part, n in rows])

        def together(name: str) -> StageParts:
            each = [getattr(part, name).take(np.array([n])) for part, n in rows]
            return StageParts(*(np.concatenate(of_field) for of_field in zip(*each, strict=True)))

        seconds = (of("forward_s"), of("backward_s"), of("update_s"))
        return cls(*seconds, together("parts"), together("of_ranks"), splits=False)


@dataclass(frozen=True)
class _Replayed:
    """The results of distinct stages and ranks, by row."""

    forward_s: Floats
    period_s: Floats
    update_s: Floats
    parts: StageParts


def units_of_values(
    replayer: Replayer, of_group: NDArray[np.int64], values: ProgramValues
) -> NDArray[np.int64]:
    """Returns the unit that each value of a program belongs to, by the unit of each group; a
    crossing is of the unit that reads."""
    of_edge = np.array([of_group[e.target] for e in replayer.problem.edges], dtype=np.int64)
    units = np.full(len(values), EVERYWHERE)
    tables, owners, _ = values.cells.T
    first_of_edges = len(replayer.group_tables)
    is_edge, is_group = tables >= first_of_edges, values.are_cells & (tables < first_of_edges)
    units[is_edge] = of_edge[owners[is_edge]]
    units[is_group] = of_group[owners[is_group]]
    return units


class StageReplayer:
    """Replays the stages of one problem; `of_group` gives the unit of each group."""

    def __init__(self, replayer: Replayer, of_group: Sequence[int]) -> None:
        """Raises `ValueError` for a problem of fewer than `FEWEST` micro-batches."""
        self._replayer = replayer
        self._problem = replayer.problem
        self._of_group = np.array(of_group)
        self._of_edge = np.array([of_group[e.target] for e in self._problem.edges], dtype=np.int64)
        tape = replayer.tape
        self._of_task = units_of_values(replayer, self._of_group, tape.durations)
        self._of_buffer = units_of_values(replayer, self._of_group, tape.sizes)
        if replayer.repeat is None:
            raise ValueError(f"a period needs {FEWEST} micro-batches")
        self._reader = PartsReader(replayer, self._of_task)
        self._named: dict[str, tuple[list[int], list[int]]] = {}

    def replay(
        self,
        choices: Choices,
        edge_choices: Choices,
        bounds: Sequence[int],
        ranks: Sequence[Sequence[int]] | None = None,
        tied: Sequence[Sequence[str]] = (),
    ) -> ReplayedStages:
        """Replays the stages of one strategy, (groups,) and (edges,): stage s has the units from
        `bounds[s]` to `bounds[s + 1]` - 1. `ranks` are the stages of each rank, one by default.
        Of the copies of a parameter, `tied`, a rank has the largest."""
        return self.replay_ranges(choices, edge_choices, list(pairwise(bounds)), ranks, tied)

    def replay_ranges(
        self,
        choices: Choices,
        edge_choices: Choices,
        ranges: Sequence[tuple[int, int]],
        ranks: Sequence[Sequence[int]] | None = None,
        tied: Sequence[Sequence[str]] = (),
    ) -> ReplayedStages:
        """Replays stages that need not cover the model, each with the units from the first of its
        range to the last - 1."""
        stages = len(ranges)
        first, last = np.array(ranges).T[:, :, None]
        placed = [(stage,) for stage in range(stages)] if ranks is None else [*map(tuple, ranks)]

        def inside(units: NDArray[np.int64]) -> NDArray[np.bool_]:
            """Returns each stage's items, and those of ranks with several stages."""
            own = (units == EVERYWHERE) | ((first <= units) & (units < last))
            of_ranks = [own[list(rank)].any(axis=0) for rank in placed]
            return np.concatenate([own, np.array(of_ranks)])

        groups, edges = inside(self._of_group), inside(self._of_edge)
        different, which = self._different(choices, edge_choices, groups, edges)
        tasks, buffers = inside(self._of_task), inside(self._of_buffer)
        values = self._replayer.values(choices[None], edge_choices[None])
        for copies in tied:
            self._have_one(copies, values[1][0], tasks[stages:], buffers[stages:])
        every = self._rows(
            values,
            choices,
            edge_choices,
            tasks[different],
            buffers[different],
            np.concatenate([groups, edges], axis=1)[different],
        )
        own, of_rank = which[:stages], which[stages:]
        shares = every.update_s[own].copy()
        for rank, row in zip(placed, of_rank, strict=True):
            total = shares[list(rank)].sum()
            if len(rank) > 1 and total > 0:
                shares[list(rank)] *= every.update_s[row] / total
        return ReplayedStages(
            every.forward_s[own],
            np.maximum(every.period_s - every.forward_s, 0.0)[own],
            shares,
            every.parts.take(own),
            every.parts.take(of_rank),
            self._reader.splits,
        )

    def _have_one(
        self,
        copies: Sequence[str],
        sizes_bytes: Floats,
        tasks: NDArray[np.bool_],
        buffers: NDArray[np.bool_],
    ) -> None:
        """Removes all but the largest copy of a tied parameter from each rank, (R, tasks) and (R,
        buffers): its permanent buffers, its update and the update's buffers."""
        bytes_of = {name: sizes_bytes[self._of_parameter(name)[0]].sum() for name in copies}
        for row in range(len(buffers)):
            own = [name for name in copies if buffers[row, self._of_parameter(name)[0]].any()]
            for name in sorted(own, key=lambda name: -bytes_of[name])[1:]:
                held, updates = self._of_parameter(name)
                buffers[row, held], tasks[row, updates] = False, False

    def _of_parameter(self, name: str) -> tuple[list[int], list[int]]:
        """Returns a parameter's buffers, permanent and in the update, and its tasks at the end of
        the step."""
        if name not in self._named:
            tape = self._replayer.tape
            forms = {form.format(name) for form in FORMS}
            ends = {f"{what} {name}" for what in UPDATES}
            gradients = {f"gradient of {name}", f"gradient of {name}, a shard"}
            summed = self._reader.gradients.tolist()
            self._named[name] = (
                [
                    *(b for b, label in enumerate(tape.buffer_labels) if label in forms),
                    *(b for b in summed if tape.buffer_labels[b] in gradients),
                ],
                [task for task, label in enumerate(tape.labels) if label in ends],
            )
        return self._named[name]

    def _different(
        self,
        choices: Choices,
        edge_choices: Choices,
        groups: NDArray[np.bool_],
        edges: NDArray[np.bool_],
    ) -> tuple[list[int], NDArray[np.int64]]:
        """Returns the rows that differ in more than names, and for each row the index of its
        representative among these."""
        problem = self._problem
        known: dict[Hashable, int] = {}
        different: list[int] = []
        which = []
        for row in range(len(groups)):
            inside = np.flatnonzero(groups[row]).tolist()
            place = {group: number for number, group in enumerate(inside)}
            key = (
                tuple((id(problem.costs[g]), int(choices[g])) for g in inside),
                tuple(
                    (
                        id(edge.table),
                        place.get(edge.source, -1),
                        place.get(edge.target, -1),
                        int(edge.table.rows[choices[edge.source]]),
                        int(edge_choices[number]),
                    )
                    for number, edge in ((e, problem.edges[e]) for e in np.flatnonzero(edges[row]))
                ),
            )
            if key not in known:
                known[key] = len(different)
                different.append(row)
            which.append(known[key])
        return different, np.array(which, dtype=np.int64)

    def _rows(
        self,
        values: Values,
        choices: Choices,
        edge_choices: Choices,
        tasks: NDArray[np.bool_],
        buffers: NDArray[np.bool_],
        own: NDArray[np.bool_],
    ) -> _Replayed:
        """Replays the parts of a strategy in each row: (rows, tasks), (rows, buffers) and (rows,
        groups + edges)."""
        durations, sizes, flags = values
        rows = len(own)
        values = (
            np.where(tasks, durations, 0.0),
            np.where(buffers, sizes, 0.0),
            np.repeat(flags, rows, axis=0),
        )
        outcome = self._replayer.run(values)
        replayed = self._replayer.replayed(values, outcome, np.zeros(rows))
        total, period = self._replayer.periods(outcome)
        host_s = self._sum(self._replayer.host, choices, edge_choices, own)
        step_s = soft_maximum(replayed.device_s, host_s)
        # What contention adds is spread over the step.
        batches = self._problem.context.micro_batches
        device_s = batches * period * (replayed.device_s / np.maximum(total, TINY))
        passes_s = soft_maximum(device_s, host_s) / batches
        traces = [self._replayer.trace_values(values, row) for row in range(rows)]
        parts = self._reader.parts(values, sizes[0], tasks, traces)
        return _Replayed(
            passes_s * parts.shares[:, FORWARD],
            passes_s,
            np.maximum(step_s - batches * passes_s, 0.0),
            parts,
        )

    def _sum(
        self,
        costs: OwnerCosts | None,
        choices: Choices,
        edge_choices: Choices,
        own: NDArray[np.bool_],
    ) -> Floats:
        """Returns the total costs of each stage's owners, (S, groups + edges), or 0."""
        if costs is None:
            return np.zeros(len(own))
        each = costs.each(self._problem, choices[None], edge_choices[None])[:, 0]
        return np.asarray(costs.constant + own @ each)
