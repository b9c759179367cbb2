"""Measures one call after another in one process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from shardwise.measure.cores import allowed_cores
from shardwise.measure.operators.calls import NotMeasurable, engine_overhead, prepare
from shardwise.measure.operators.clock import Clock, Timing, timing
from shardwise.measure.operators.effort import Effort
from shardwise.measure.operators.needed import OperatorItem


class Peers(Protocol):
    """The processes that measure the same call at the same time."""

    def ready(self) -> None:
        """Waits until all have their operands."""

    def done(self) -> None:
        """Says that this process's repetitions are over."""

    def busy(self) -> bool:
        """Returns whether any peer is still repeating."""


class NoPeers:
    """No peers."""

    def ready(self) -> None:
        """Does nothing: there is no one to wait for."""

    def done(self) -> None:
        """Does nothing: there is no one to tell."""

    def busy(self) -> bool:
        return False


class Bench:
    """One process's device, ready to time calls.

    If `crowd` processes per core time the same calls at once, each gets part of the core's time.
    How long that takes by the wall clock depends on when the scheduler takes turns: a call shorter
    than a turn seems to run alone. So the process's own time counts, multiplied by the number of
    processes.
    """

    def __init__(self, torch: Any, effort: Effort, crowd: int = 1) -> None:
        self._torch = torch
        self._device = torch.device(effort.device)
        self._crowd = crowd
        self._slowed = effort.slowed.times
        own = effort.own_time or crowd > 1
        self._clock = Clock(torch, self._device, flushed=effort.flushed, own_time=own)
        unflushed = Clock(torch, self._device, flushed=False, own_time=own)
        self._engine_s = engine_overhead(torch, self._device, unflushed.once)
        if self._device.type == "cuda":
            self._engine_s = 0.0  # the events' time does not include the host's work

    def times(self, item: OperatorItem, budget_s: float, peers: Peers) -> list[float] | str:
        """Returns seconds of repetitions of one item, or the reason why there are none."""
        reason, call = "", None
        try:
            call = prepare(self._torch, item, self._device)
        except NotMeasurable as refused:
            reason = str(refused)
        peers.ready()
        times: list[float] = []
        if call is not None:
            slowed = None if item.family.direction == "update" else self._slowed
            runs = self._clock.repeat(call.run, call.touched, budget_s, slowed)
            overhead = call.engine_starts * self._engine_s
            # At most half of a call is attributed to overhead.
            times = [self._crowd * max(run - overhead, run / 2) / call.count for run in runs]
        peers.done()
        while call is not None and peers.busy():
            self._clock.once(call.run, call.touched)
        return times or reason


@contextmanager
def threads_set(torch: Any, threads: int) -> Iterator[None]:
    """Sets torch's number of threads while the block runs."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def threads_of(effort: Effort) -> int:
    """Returns threads of one rank: the requested number, else its share of the cores; 0 on GPUs."""
    if effort.device != "cpu":
        return 0
    return effort.threads or max(len(allowed_cores()) // effort.ranks, 1)


class Alone:
    """Measures in this process, without siblings."""

    def __init__(self, torch: Any, effort: Effort) -> None:
        self.threads = threads_of(effort)
        self._bench = Bench(torch, effort)

    def measure(self, item: OperatorItem, budget_s: float) -> Timing | str:
        """Returns the timing of one item, or the reason why there is none."""
        times = self._bench.times(item, budget_s, NoPeers())
        return times if isinstance(times, str) else timing(times)
