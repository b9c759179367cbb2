"""Stages whose backward is in two parts, I and W: seconds and bytes of each (`stages.py`).

A period of a stage's own replay is a forward, an I and a W of one micro-batch, one after another.
Forward lasts from its first computation to its last, I from there to its last, W is the rest.

Bytes are those of the replay. `peak_bytes` is the most that is held while each part runs, one
micro-batch at a time. What waits from I to W are the buffers that W reads and that were there
before it: inputs of operators, gradients of their results, and what was made again for I. Among
them are tensors that other stages have made, which the stage's own replay does not have.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwise.replay.replay import Replayer, Values
from shardwise.replay.tape import ALWAYS, COMPUTE
from shardwise.sharding.layout import Floats

FORWARD, INPUTS, WEIGHTS = range(3)
"""The parts of a micro-batch, in their order."""


class SplitParts(NamedTuple):
    """What R stages or ranks take: `shares` (R, 3) of a period, and bytes: `peak_bytes` (R, 3)
    while each part runs, `waiting_bytes` (R,) from I to W, of which the stage's own replay has
    `own_waiting_bytes` (R,)."""

    shares: Floats
    peak_bytes: Floats
    waiting_bytes: Floats
    own_waiting_bytes: Floats

    def take(self, rows: NDArray[np.int64]) -> SplitParts:
        """Returns the same of some rows."""
        return SplitParts(*(values[rows] for values in self))


class SplitReader:
    """Reads the parts from replays of one program whose backward is split."""

    def __init__(self, replayer: Replayer) -> None:
        self._replayer = replayer
        tape, passes = replayer.tape, replayer.passes
        part = np.full(len(tape.holds), -1)
        for one in passes:
            part[one.forward_tasks.start : one.forward_tasks.stop] = FORWARD
            part[one.forward_tasks.stop : one.weights_tasks.start] = INPUTS
            part[one.weights_tasks.start : one.weights_tasks.stop] = WEIGHTS
        self._part = part
        computes = np.array([COMPUTE in held for held in tape.holds])
        self._compute = np.flatnonzero(computes)
        middle = range(passes[1].forward_tasks.start, passes[1].weights_tasks.stop)
        inside = np.zeros(len(part), dtype=bool)
        inside[middle.start : middle.stop] = True
        self._computing = [inside & computes & (part == number) for number in range(3)]
        # What W of the middle micro-batch reads that was there before, with the reading task.
        weights = passes[1].weights_tasks
        read = [use for use in tape.uses if use[1] in weights]
        self._read = np.array(read, dtype=np.int64).reshape(-1, 3)
        self._pairs, self._keeps = tape.pairs, tape.keeps
        makers, lasting = np.array(tape.makers), np.array(tape.lasting, dtype=bool)
        self._was_made = (makers >= 0) & (makers < weights.start) & ~lasting

    def parts(self, values: Values, unmasked_bytes: Floats, tasks: NDArray[np.bool_]) -> SplitParts:
        """Returns the parts of rows whose `values` are given; `unmasked_bytes` (buffers,) are sizes
        with those of other stages, `tasks` (R, tasks) what each row has."""
        durations, sizes, flags = values
        shares, peaks = [], []
        for row in range(len(tasks)):
            outcome, timeline = self._replayer.trace_values(values, row)
            period = float(self._replayer.periods(outcome)[1][0])
            shares.append(self._shares(durations[row], timeline.start_s, timeline.end_s, period))
            held, part = timeline.held_bytes, self._running(timeline.start_s)
            peaks.append([float(held[part == number].max(initial=0.0)) for number in range(3)])
        block = self._replayer.block_bytes
        whole, own = (np.ceil(given / block) * block for given in (unmasked_bytes[None], sizes))
        counts = self._waiting(flags[0], tasks)
        return SplitParts(
            np.array(shares).reshape(-1, 3),
            np.array(peaks).reshape(-1, 3),
            np.array([whole[0, of].sum() for of in counts]),
            np.array([own[row, of].sum() for row, of in enumerate(counts)]),
        )

    def _running(self, start_s: Floats) -> NDArray[np.int64]:
        """Returns the part in which each task starts, -1 outside: communication may wait."""
        part = self._part.copy()
        others = np.setdiff1d(np.arange(len(part)), self._compute)
        latest = np.searchsorted(start_s[self._compute], start_s[others], side="right") - 1
        part[others] = np.where(latest < 0, -1, self._part[self._compute[np.maximum(latest, 0)]])
        return part

    def _shares(self, durations: Floats, start_s: Floats, end_s: Floats, period: float) -> Floats:
        """Returns the shares of forward, I and W of a period; none is less than it computes."""
        computed = np.array([float(durations[mask].sum()) for mask in self._computing])
        runs = [mask & (durations > 0) for mask in self._computing]
        if period <= 0.0 or not any(mask.any() for mask in runs):
            return np.array([1.0, 0.0, 0.0])
        begin = min(float(start_s[mask].min()) for mask in runs if mask.any())
        ends = [begin]
        for mask in runs[:WEIGHTS]:
            ends.append(float(end_s[mask].max()) if mask.any() else ends[-1])
        forward = min(ends[1] - ends[0], period - computed[INPUTS] - computed[WEIGHTS])
        forward = max(forward, computed[FORWARD])
        inputs = max(min(ends[2] - ends[1], period - forward - computed[WEIGHTS]), computed[INPUTS])
        return np.array([forward, inputs, max(period - forward - inputs, 0.0)]) / period

    def _waiting(
        self, flags: NDArray[np.bool_], tasks: NDArray[np.bool_]
    ) -> list[NDArray[np.int64]]:
        """Returns for each row the buffers that wait for W of its own tasks; `flags` are those of
        the strategy."""
        buffers, readers, of_flag = self._read.T
        values = [True, *flags.tolist()]
        both: list[bool] = []
        for a, b in self._pairs:
            both.append(_value(values, both, a) and _value(values, both, b))
        counted = np.array([_value(values, both, flag) for flag in of_flag.tolist()], dtype=bool)
        kept = {
            name: [buffer for buffer, flag in of if _value(values, both, flag)]
            for name, of in reversed(self._keeps.items())
        }
        waiting = []
        for of_row in tasks:
            held = set(buffers[counted & of_row[readers]].tolist())
            for name, of_name in kept.items():
                if name in held:
                    held.update(of_name)
            every = np.array(sorted(held), dtype=np.int64)
            waiting.append(every[self._was_made[every]])
        return waiting


def _value(given: list[bool], both: list[bool], flag: int) -> bool:
    """Returns a flag's value: `given` begins with that of `ALWAYS`, -2 is the first of `both`."""
    return given[flag - ALWAYS] if flag >= ALWAYS else both[-2 - flag]
