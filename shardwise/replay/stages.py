"""Replay of the stages of a pipeline, each on its own.

A strategy of the whole model on the devices of one stage is also one of each stage: what belongs to
the groups of other stages takes no time and no memory. The program is that of the whole model, so
that a stage's step has the same tasks in the same order, overlapped in the same way. A crossing
belongs to the stage that reads the tensor, where it arrives in the layout in which it was made.

A stage's step of A micro-batches, one after another, is divided into A (f + b) + u: forward and
backward of a micro-batch, and the rest, which is the synchronisation of gradients and the update.
What the host launches counts as work of the passes: with P the device's time of a micro-batch and H
the host's of the step, A (f + b) is the soft maximum of A P and H (`hardware/host.py`). In a
pipeline (`pipeline/simulate.py`) passes run in another order, and more micro-batches are kept.

Where a rank has several stages, the end of its step and what it holds throughout are those of a
replay of all of them together. Stages of the same costs, choices and crossings are replayed once.

A replayer whose backward is split gives the parts of backward as well (`split_stages.py`).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from shardwise.hardware.host import soft_maximum
from shardwise.replay.owner_costs import Choices, OwnerCosts
from shardwise.replay.replay import Replayer, Values
from shardwise.replay.split_stages import FORWARD, WEIGHTS, SplitParts, SplitReader
from shardwise.replay.tape import ALWAYS, COMPUTE, Cell, Value
from shardwise.sharding.layout import Floats

EVERYWHERE = -1
"""The unit of what every stage has: constants and what they are made of."""

FEWEST = 4
"""Micro-batches without which no period can be told (`replay.program.WRITTEN` and one more)."""

TINY = 1e-30
"""Seconds that nothing is divided by less of."""

FORMS = ("{}", "temporary of {}", "gradient of {} in float32", "root of {}", "denominator of {}")
"""What the program calls the buffers of a parameter that a copy of it needs not have again."""

UPDATES = ("update", "spread", "finish gradient of", "reduce")
"""The program's tasks at the end of a step for a parameter."""


@dataclass(frozen=True)
class ReplayedStages:
    """What S stages take: seconds of a micro-batch and of the step's end, bytes; shape (S,).

    `peak_bytes` is that of one micro-batch at a time, `kept_bytes` what every further one adds,
    `lasting_bytes` what is there throughout: parameters, gradients, optimizer states. `rank_` is of
    all stages of a rank together, (R,), one micro-batch through all of them at a time; the
    `update_s` of a rank's stages add up to that of the rank. `split` is there where backward is in
    two parts, which `backward_s` is the sum of.
    """

    forward_s: Floats
    backward_s: Floats
    update_s: Floats
    peak_bytes: Floats
    kept_bytes: Floats
    lasting_bytes: Floats
    rank_peak_bytes: Floats
    rank_lasting_bytes: Floats
    split: SplitParts | None = None

    @property
    def weights_s(self) -> Floats:
        """The seconds of backward that are gradients of weights, 0 where it is not split."""
        if self.split is None:
            return np.zeros_like(self.backward_s)
        periods_s = self.forward_s + self.backward_s
        return np.minimum(periods_s * self.split.shares[:, WEIGHTS], self.backward_s)

    @property
    def inputs_s(self) -> Floats:
        """The rest of backward."""
        return np.asarray(self.backward_s - self.weights_s)

    @classmethod
    def joined(cls, parts: Mapping[int, ReplayedStages], part_of: Sequence[int]) -> ReplayedStages:
        """Returns stages of several replays, one on each rank: stage s is the next one of the part
        `part_of[s]`. Backward is whole in all of them."""
        places = np.array([list(part_of[:s]).count(part) for s, part in enumerate(part_of)])
        every = {
            name: np.array(
                [getattr(parts[p], name)[n] for p, n in zip(part_of, places, strict=True)]
            )
            for name in (f.name for f in fields(cls) if f.name != "split")
        }
        return cls(split=None, **every)


@dataclass(frozen=True)
class _Replayed:
    """The same of the stages and ranks that differ, by row."""

    forward_s: Floats
    period_s: Floats
    update_s: Floats
    peak_bytes: Floats
    lasting_bytes: Floats
    split: SplitParts | None


def units_of_values(
    replayer: Replayer, of_group: NDArray[np.int64], values: Sequence[Value]
) -> NDArray[np.int64]:
    """Returns the unit that each value of a program belongs to, by the unit of each group; a
    crossing is of the unit that reads."""
    of_edge = np.array([of_group[e.target] for e in replayer.problem.edges], dtype=np.int64)
    units = np.full(len(values), EVERYWHERE)
    for number, value in enumerate(values):
        if isinstance(value, Cell):
            is_edge = replayer.edge_values(value.table) is not None
            units[number] = (of_edge if is_edge else of_group)[value.owner]
    return units


class StageReplayer:
    """Replays the stages of one problem; `of_group` gives the unit of each group."""

    def __init__(self, replayer: Replayer, of_group: Sequence[int]) -> None:
        """Raises `ValueError` for a problem of fewer than `FEWEST` micro-batches."""
        self._replayer = replayer
        problem = self._problem = replayer.problem
        self._kept = OwnerCosts(
            0.0,
            [cost.activation_bytes for cost in problem.costs],
            [edge.table.memory_bytes for edge in problem.edges],
        )
        # `OwnerCosts` leaves out crossings of one cell, as all are on one device.
        self._kept_alike = np.array(
            [0.0] * len(problem.costs)
            + [
                float(e.table.memory_bytes.sum()) * (e.table.memory_bytes.size == 1)
                for e in problem.edges
            ]
        )
        self._of_group = np.array(of_group)
        self._of_edge = np.array([of_group[e.target] for e in self._problem.edges], dtype=np.int64)
        tape = replayer.tape
        self._of_task = units_of_values(replayer, self._of_group, tape.durations)
        self._of_buffer = units_of_values(replayer, self._of_group, tape.sizes)
        self._computes = np.array([COMPUTE in held for held in tape.holds])
        forward = replayer.passes[1].forward_tasks
        self._forward = np.zeros(len(tape.holds), dtype=bool)
        self._forward[forward.start : forward.stop] = True
        repeat = replayer.repeat
        if repeat is None:
            raise ValueError(f"a period needs {FEWEST} micro-batches")
        again = np.zeros(len(tape.holds), dtype=bool)
        again[repeat.tasks.start : repeat.tasks.stop] = True
        self._backward = (again & self._computes & ~self._forward).astype(np.float64)
        """1 for the computation of one micro-batch's backward."""
        self._lasting = np.array(tape.lasting, dtype=bool)
        # Gradients: what the passes made and the update reads, with the flag under which it does.
        update = replayer.kit.update
        gradients = [
            (buffer, flag)
            for buffer, task, flag in tape.uses
            if task in update and tape.makers[buffer] < update.start and not tape.lasting[buffer]
        ]
        self._gradients = np.array(gradients, dtype=np.int64).reshape(-1, 2)
        assert (self._gradients[:, 1] >= ALWAYS).all(), "flags of the update are given ones"
        self._block_bytes = replayer.block_bytes
        self._named: dict[str, tuple[list[int], list[int]]] = {}
        self._split = SplitReader(replayer) if replayer.passes[1].weights_tasks else None

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
        Of the copies of a parameter, `tied`, a rank has one."""
        return self.replay_ranges(choices, edge_choices, list(pairwise(bounds)), ranks, tied)

    def replay_ranges(
        self,
        choices: Choices,
        edge_choices: Choices,
        ranges: Sequence[tuple[int, int]],
        ranks: Sequence[Sequence[int]] | None = None,
        tied: Sequence[Sequence[str]] = (),
    ) -> ReplayedStages:
        """Replays stages that need not be all of the model: each has the units from the first of
        its range to the last - 1."""
        stages = len(ranges)
        first, last = np.array(ranges).T[:, :, None]
        placed = [(stage,) for stage in range(stages)] if ranks is None else [*map(tuple, ranks)]

        def inside(units: NDArray[np.int64]) -> NDArray[np.bool_]:
            """Returns what each stage has, and what each rank has of several."""
            own = (units == EVERYWHERE) | ((first <= units) & (units < last))
            of_ranks = [own[list(rank)].any(axis=0) for rank in placed]
            return np.concatenate([own, np.array(of_ranks)])

        groups, edges = inside(self._of_group), inside(self._of_edge)
        different, which = self._different(choices, edge_choices, groups, edges)
        tasks, buffers = inside(self._of_task), inside(self._of_buffer)
        for copies in tied:
            self._have_one(copies, tasks[stages:], buffers[stages:])
        every = self._rows(
            choices,
            edge_choices,
            tasks[different],
            buffers[different],
            np.concatenate([groups, edges], axis=1)[different],
        )
        own, of_rank = which[:stages], which[stages:]
        kept = np.concatenate([groups, edges], axis=1)[:stages]
        shares = every.update_s[own].copy()
        for rank, row in zip(placed, of_rank, strict=True):
            total = shares[list(rank)].sum()
            if len(rank) > 1 and total > 0:
                shares[list(rank)] *= every.update_s[row] / total
        return ReplayedStages(
            every.forward_s[own],
            np.maximum(every.period_s - every.forward_s, 0.0)[own],
            shares,
            every.peak_bytes[own],
            self._sum(self._kept, choices, edge_choices, kept) + kept @ self._kept_alike,
            every.lasting_bytes[own],
            every.peak_bytes[of_rank],
            every.lasting_bytes[of_rank],
            None if every.split is None else every.split.take(own),
        )

    def _have_one(
        self, copies: Sequence[str], tasks: NDArray[np.bool_], buffers: NDArray[np.bool_]
    ) -> None:
        """Takes from ranks, (R, tasks) and (R, buffers), all but the first of the copies of a
        parameter that each has: what lasts of it, its update and what that allocates."""
        for row in range(len(buffers)):
            own = [name for name in copies if buffers[row, self._of_parameter(name)[0]].any()]
            for name in own[1:]:
                held, updates = self._of_parameter(name)
                buffers[row, held], tasks[row, updates] = False, False

    def _of_parameter(self, name: str) -> tuple[list[int], list[int]]:
        """Returns the buffers that a parameter has throughout and in the update, and the tasks at
        the end of the step that are for it."""
        if name not in self._named:
            tape = self._replayer.tape
            forms = {form.format(name) for form in FORMS}
            ends = {f"{what} {name}" for what in UPDATES}
            gradients = {f"gradient of {name}", f"gradient of {name}, a shard"}
            summed = self._gradients[:, 0].tolist()
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
        """Returns the rows that differ in more than names, and for each row that which stands for
        it, by place among those."""
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
        choices: Choices,
        edge_choices: Choices,
        tasks: NDArray[np.bool_],
        buffers: NDArray[np.bool_],
        own: NDArray[np.bool_],
    ) -> _Replayed:
        """Replays the parts of a strategy that rows have: (rows, tasks), (rows, buffers) and (rows,
        groups + edges)."""
        durations, sizes, flags = self._replayer.values(choices[None], edge_choices[None])
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
        split = None
        if self._split is None:
            forward = np.array([self._forward_s(values, row) for row in range(rows)])
            forward = np.minimum(forward, period - values[0] @ self._backward)
            share = np.clip(forward / np.maximum(period, TINY), 0.0, 1.0)
        else:
            split = self._split.parts(values, sizes[0], tasks)
            share = split.shares[:, FORWARD]
        return _Replayed(
            passes_s * share,
            passes_s,
            np.maximum(step_s - batches * passes_s, 0.0),
            replayed.peak_bytes,
            self._lasting_bytes(values),
            split,
        )

    def _lasting_bytes(self, values: Values) -> Floats:
        """Returns what rows hold from the first backward on: what is there before, and gradients;
        whole blocks, as the allocator has them."""
        _, sizes, flags = values
        blocks = np.ceil(sizes / self._block_bytes) * self._block_bytes
        total = blocks[:, self._lasting].sum(axis=1)
        buffers, of_flag = self._gradients.T
        held = np.where(of_flag == ALWAYS, True, flags[:, np.maximum(of_flag, 0)])
        return np.asarray(total + (blocks[:, buffers] * held).sum(axis=1))

    def _forward_s(self, values: Values, stage: int) -> float:
        """Returns the seconds of forward of one micro-batch of a stage, from its first computation
        to its last."""
        _, timeline = self._replayer.trace_values(values, stage)
        runs = self._forward & self._computes & (values[0][stage] > 0)
        if not runs.any():
            return 0.0
        return float(timeline.end_s[runs].max() - timeline.start_s[runs].min())

    def _sum(
        self,
        costs: OwnerCosts | None,
        choices: Choices,
        edge_choices: Choices,
        own: NDArray[np.bool_],
    ) -> Floats:
        """Returns what the owners of each stage, (S, groups + edges), cost together; 0 of
        nothing."""
        if costs is None:
            return np.zeros(len(own))
        each = costs.each(self._problem, choices[None], edge_choices[None])[:, 0]
        return np.asarray(costs.constant + own @ each)
