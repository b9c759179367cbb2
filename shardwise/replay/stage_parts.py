"""Seconds and bytes of the parts of a stage's micro-batch: forward and backward, or F, I and W.

A period of a stage's own replay (`stages.py`) is the forward and backward of one micro-batch, or
with a split backward forward, I and W in sequence. Forward lasts from its first computation to its
last, I from there to its own last, and W is the rest.

Bytes come from the replay, tensor by tensor. The first of the written micro-batches creates the
gradients, later ones add to them, and the last sums them over replicas, so a part has three peaks:
in the first micro-batch, in one between, and in the last. A part runs from the start of the stage's
first task in it to the end of its last. Buffers that forward and backward share are kept between
them. Buffers that exist before W and that W reads wait from I to W: operators' inputs, gradients of
their results, and tensors recomputed for I. Other stages made some of them, so the stage's own
replay lacks these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwise import _core
from shardwise.errors import InternalError
from shardwise.replay.program import Pass
from shardwise.replay.record import ALWAYS, Record
from shardwise.replay.replay import Replayer, Values
from shardwise.replay.tape import COMPUTE
from shardwise.sharding.layout import Floats

FORWARD, BACKWARD, WEIGHTS = range(3)
"""The parts of a micro-batch in order; `BACKWARD` is I if backward is split."""

PASSES = 3
"""Micro-batches that are distinguished: the first, one between, the last."""

UPDATE = PASSES * 3
"""The number of the update among parts of passes, pass by pass."""


class StageParts(NamedTuple):
    """The parts of R stages or ranks.

    `shares` (R, 3) of a period. In bytes: `peak_bytes` (R, 3, 3) is the peak of each part of each
    pass, one micro-batch at a time, 0 without such a part; `update_bytes` (R,) that of the update;
    `kept_bytes` (R,) is kept per micro-batch, without incoming tensors; `waiting_bytes` (R,) waits
    from I to W, of which the stage's own replay has `own_waiting_bytes` (R,); `start_bytes` (R,) is
    permanent; `gradient_bytes` (R, 2) are the gradients from the first backward on: those of I, or
    a whole backward, and of W.
    """

    shares: Floats
    peak_bytes: Floats
    update_bytes: Floats
    kept_bytes: Floats
    waiting_bytes: Floats
    own_waiting_bytes: Floats
    start_bytes: Floats
    gradient_bytes: Floats

    def take(self, rows: NDArray[np.int64]) -> StageParts:
        """Returns the same of some rows."""
        return StageParts(*(values[rows] for values in self))

    @property
    def lasting_bytes(self) -> Floats:
        """The bytes from the first backward on, (R,): permanent ones and gradients."""
        return np.asarray(self.start_bytes + self.gradient_bytes.sum(axis=1))

    @property
    def most_bytes(self) -> Floats:
        """The peak of all parts and the update, one micro-batch at a time, (R,)."""
        return np.asarray(np.maximum(self.peak_bytes.max(axis=(1, 2)), self.update_bytes))


class PartsReader:
    """Reads the parts from replays of one program; `of_task` (tasks,) is the unit of each task,
    negative for none."""

    def __init__(self, replayer: Replayer, of_task: NDArray[np.int64]) -> None:
        self._replayer = replayer
        tape, passes = replayer.tape, replayer.passes
        self.splits = bool(passes[1].weights_tasks)
        update = replayer.kit.update
        self._segments = _segments(passes, update.start)
        self._numbers = np.full(len(tape.holds), UPDATE)
        for number, segment in enumerate(self._segments):
            self._numbers[segment.start : segment.stop] = number
        self._is_somebodys = of_task >= 0
        computes = np.array([COMPUTE in held for held in tape.holds])
        self._compute = np.flatnonzero(computes)
        self._others = np.flatnonzero(~computes)
        between = range(3, 6)
        self._computing = [np.flatnonzero(computes & (self._numbers == n)) for n in between]
        self._flags = _Flags(tape)
        forward, inputs, weights = (self._segments[number] for number in between)
        # Tensors that every device computes in full, such as a mask, are shared by all kept
        # micro-batches. What waits for W is held for each.
        makers = tape.makers
        counts = (makers >= 0) & self._is_somebodys[np.maximum(makers, 0)]
        self._kept = _reads(tape, counts, forward, range(inputs.start, weights.stop))
        self._read = _reads(tape, np.ones_like(counts), range(weights.start), weights)
        self._lasting = np.flatnonzero(tape.lasting)
        # Gradients: what the passes made and the update reads, with the flag under which it does.
        buffers, tasks, flags = tape.uses.T
        of_update = (update.start <= tasks) & (tasks < update.stop)
        of_update &= (makers[buffers] < update.start) & ~tape.lasting[buffers]
        buffers, flags = buffers[of_update], flags[of_update]
        if (flags < ALWAYS).any():
            raise InternalError("the update reads gradients under a flag that is not given")
        self.gradients, self._of_gradients = buffers, flags
        makers = self._numbers[makers[buffers]]
        self._of_weights = makers % 3 == WEIGHTS

    def parts(
        self,
        values: Values,
        unmasked_bytes: Floats,
        tasks: NDArray[np.bool_],
        traces: list[tuple[_core.Replays, _core.Timeline]],
    ) -> StageParts:
        """Returns the parts of rows whose `values` and `traces` are given; `unmasked_bytes`
        (buffers,) are sizes with those of other stages, `tasks` (R, tasks) what each row has."""
        durations, sizes, flags = values
        shares, peaks, update = [], [], []
        for row, (outcome, timeline) in enumerate(traces):
            period = float(self._replayer.periods(outcome)[1][0])
            shares.append(self._shares(durations[row], timeline.start_s, timeline.end_s, period))
            most = self._most_bytes(timeline, tasks[row])
            peaks.append(most[:UPDATE].reshape(PASSES, 3).T)
            update.append(most[UPDATE])
        block = self._replayer.block_bytes
        whole, own = (np.ceil(given / block) * block for given in (unmasked_bytes[None], sizes))
        values_of = self._flags.of(flags[0])
        kept = [_buffers(self._kept, values_of, of_row) for of_row in tasks]
        waiting = [_buffers(self._read, values_of, of_row) for of_row in tasks]
        return StageParts(
            np.array(shares).reshape(-1, 3),
            np.array(peaks).reshape(-1, 3, PASSES),
            np.array(update),
            np.array([own[row, of].sum() for row, of in enumerate(kept)]),
            np.array([whole[0, of].sum() for of in waiting]),
            np.array([own[row, of].sum() for row, of in enumerate(waiting)]),
            own[:, self._lasting].sum(axis=1),
            self._gradient_bytes(own, values_of),
        )

    def _gradient_bytes(self, own: Floats, flags: NDArray[np.bool_]) -> Floats:
        """Returns the bytes of gradients made in backward and in W, (R, 2)."""
        held = own[:, self.gradients] * flags[self._of_gradients]
        later = held[:, self._of_weights].sum(axis=1)
        return np.stack([held.sum(axis=1) - later, later], axis=1)

    def _most_bytes(self, timeline: _core.Timeline, own: NDArray[np.bool_]) -> Floats:
        """Returns the peaks of each part of each pass, and of the update, of a row with some
        tasks."""
        # Tasks that belong to no group count between the first and the last of the row's own.
        some = np.flatnonzero(own & self._is_somebodys)
        counts = self._numbers == UPDATE
        for segment in self._segments:
            first, last = np.searchsorted(some, [segment.start, segment.stop])
            if first < last:
                counts[some[first] : some[last - 1] + 1] = True
        running = self._running(timeline.start_s)
        most = np.zeros(UPDATE + 1)
        counted = np.flatnonzero(counts & (running >= 0))
        np.maximum.at(most, running[counted], np.asarray(timeline.held_bytes)[counted])
        return most

    def _running(self, start_s: Floats) -> NDArray[np.int64]:
        """Returns the part in which each task starts, -1 before the first; communication may start
        late."""
        running = self._numbers.copy()
        compute, others = self._compute, self._others
        latest = np.searchsorted(start_s[compute], start_s[others], side="right") - 1
        at = np.where(latest < 0, -1, self._numbers[compute[np.maximum(latest, 0)]])
        running[others] = np.where(self._numbers[others] == UPDATE, UPDATE, at)
        return running

    def _shares(self, durations: Floats, start_s: Floats, end_s: Floats, period: float) -> Floats:
        """Returns the shares of forward, I and W of a period; none is less than it computes."""
        computed = [float(durations[of].sum()) for of in self._computing]
        runs = [of[durations[of] > 0] for of in self._computing]
        if period <= 0.0 or not any(len(of) for of in runs):
            return np.array([1.0, 0.0, 0.0])
        begin = min(float(start_s[of].min()) for of in runs if len(of))
        ends = [begin]
        for of in runs[:WEIGHTS]:
            ends.append(float(end_s[of].max()) if len(of) else ends[-1])
        forward = min(ends[1] - ends[0], period - computed[BACKWARD] - computed[WEIGHTS])
        forward = max(forward, computed[FORWARD])
        left = period - forward
        inputs = max(min(ends[2] - ends[1], left - computed[WEIGHTS]), computed[BACKWARD])
        return np.array([forward, inputs, max(left - inputs, 0.0)]) / period


def _segments(passes: tuple[Pass, ...], end: int) -> list[range]:
    """Returns the tasks of each part of each pass; a whole backward counts as I."""
    segments = []
    ends = [one.forward_tasks.start for one in passes[1:]] + [end]
    for one, stop in zip(passes, ends, strict=True):
        weights = one.weights_tasks.start if one.weights_tasks else stop
        forward = one.forward_tasks
        segments += [forward, range(forward.stop, weights), range(weights, stop)]
    return segments


class _Reads(NamedTuple):
    """The buffers used by tasks, with the flag of each use; those behind names; and which buffers
    count, (B,)."""

    buffers: NDArray[np.int64]
    tasks: NDArray[np.int64]
    flags: NDArray[np.int64]
    named: Mapping[int, Sequence[tuple[int, int]]]
    counts: NDArray[np.bool_]


def _reads(tape: Record, counts: NDArray[np.bool_], made: range, used: range) -> _Reads:
    """Returns some tasks' uses of buffers that others made and that count, (B,)."""
    makers = tape.makers
    there = (made.start <= makers) & (makers < made.stop) & counts
    there &= ~tape.lasting
    may_count = there.copy()
    may_count[list(tape.keeps)] = True
    uses = tape.uses
    in_tasks = (used.start <= uses[:, 1]) & (uses[:, 1] < used.stop)
    buffers, tasks, flags = uses[may_count[uses[:, 0]] & in_tasks].T
    return _Reads(buffers, tasks, flags, tape.keeps, there)


def _buffers(
    reads: _Reads, flags: NDArray[np.bool_], tasks: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Returns the buffers that tasks of a row use."""
    counted = flags[reads.flags] & tasks[reads.tasks]
    used = set(reads.buffers[counted].tolist())
    names = [buffer for buffer in used if buffer in reads.named]
    while names:
        held = {buffer for buffer, flag in reads.named[names.pop()] if flags[flag]} - used
        used |= held
        names += [buffer for buffer in held if buffer in reads.named]
    every = np.array(sorted(used), dtype=np.int64)
    return every[reads.counts[every]]


class _Flags:
    """The flags of a tape: an array indexed by their numbers, from its end where these are below
    0."""

    def __init__(self, tape: Record) -> None:
        self._given = len(tape.flags)
        self._all = self._given + len(tape.pairs) - ALWAYS
        # Pairs of given flags first, then those of pairs.
        depths: list[int] = []
        levels: dict[int, list[tuple[int, int, int]]] = {}
        for number, pair in enumerate(tape.pairs.tolist()):
            depth = 1 + max(0 if flag >= ALWAYS else depths[-2 - flag] for flag in pair)
            depths.append(depth)
            levels.setdefault(depth, []).append((-2 - number, *pair))
        self._levels = [np.array(levels[depth], dtype=np.int64).T for depth in sorted(levels)]

    def of(self, given: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Returns all flags of a strategy by those that are given, (flags,)."""
        values = np.ones(self._all, dtype=bool)
        values[: self._given] = given
        for both, a, b in self._levels:
            values[both] = values[a] & values[b]
        return values
