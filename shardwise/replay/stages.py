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
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwise.hardware.host import soft_maximum
from shardwise.replay.owner_costs import Choices, OwnerCosts
from shardwise.replay.replay import Replayer, Values
from shardwise.replay.tape import COMPUTE, Cell, Value
from shardwise.sharding.layout import Floats

EVERYWHERE = -1
"""The unit of what every stage has: constants and what they are made of."""

FEWEST = 4
"""Micro-batches without which no period can be told (`replay.program.WRITTEN` and one more)."""

TINY = 1e-30
"""Seconds that nothing is divided by less of."""


@dataclass(frozen=True)
class ReplayedStages:
    """What S stages take: seconds of a micro-batch and of the step's end, bytes; shape (S,).

    `peak_bytes` is that of one micro-batch at a time, `kept_bytes` what every further one adds.
    """

    forward_s: Floats
    backward_s: Floats
    update_s: Floats
    peak_bytes: Floats
    kept_bytes: Floats


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
        self._of_group = np.array(of_group)
        self._of_edge = np.array([of_group[e.target] for e in self._problem.edges], dtype=np.int64)
        tape = replayer.tape
        self._of_task = self._units(tape.durations)
        self._of_buffer = self._units(tape.sizes)
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

    def _units(self, values: Sequence[Value]) -> NDArray[np.int64]:
        """Returns the unit that each value of the program belongs to."""
        units = np.full(len(values), EVERYWHERE)
        for number, value in enumerate(values):
            if isinstance(value, Cell):
                is_edge = self._replayer.edge_values(value.table) is not None
                units[number] = (self._of_edge if is_edge else self._of_group)[value.owner]
        return units

    def replay(
        self, choices: Choices, edge_choices: Choices, bounds: Sequence[int]
    ) -> ReplayedStages:
        """Replays the stages of one strategy, (groups,) and (edges,): stage s has the units from
        `bounds[s]` to `bounds[s + 1]` - 1."""
        durations, sizes, flags = self._replayer.values(choices[None], edge_choices[None])
        stages = len(bounds) - 1
        first, last = np.array(bounds[:-1])[:, None], np.array(bounds[1:])[:, None]

        def inside(units: NDArray[np.int64]) -> NDArray[np.bool_]:
            return np.asarray((units == EVERYWHERE) | ((first <= units) & (units < last)))

        values = (
            np.where(inside(self._of_task), durations, 0.0),
            np.where(inside(self._of_buffer), sizes, 0.0),
            np.repeat(flags, stages, axis=0),
        )
        outcome = self._replayer.run(values)
        replayed = self._replayer.replayed(values, outcome, np.zeros(stages))
        total, period = self._replayer.periods(outcome)
        own = np.concatenate([inside(self._of_group), inside(self._of_edge)], axis=1)
        host_s = self._sum(self._replayer.host, choices, edge_choices, own)
        step_s = soft_maximum(replayed.device_s, host_s)
        # What contention adds is spread over the step.
        batches = self._problem.context.micro_batches
        device_s = batches * period * (replayed.device_s / np.maximum(total, TINY))
        passes_s = soft_maximum(device_s, host_s) / batches
        forward = np.array([self._forward_s(values, stage) for stage in range(stages)])
        forward = np.minimum(forward, period - values[0] @ self._backward)
        forward_s = passes_s * np.clip(forward / np.maximum(period, TINY), 0.0, 1.0)
        return ReplayedStages(
            forward_s,
            passes_s - forward_s,
            np.maximum(step_s - batches * passes_s, 0.0),
            replayed.peak_bytes,
            self._sum(self._kept, choices, edge_choices, own),
        )

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
