"""Processes that measure the same call at the same time, as ranks on one host train.

They start a call together, and a process that is done continues (unrecorded) until all are: every
recorded repetition runs next to all siblings. The result is the median over all of them.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from threading import BrokenBarrierError
from types import TracebackType
from typing import Any

from shardwise.errors import ShardwiseError
from shardwise.measure.cores import allowed_cores, ranks_on_core, settle_on_cpu
from shardwise.measure.operators.bench import Bench, threads_of
from shardwise.measure.operators.clock import Timing, timing
from shardwise.measure.operators.effort import Effort
from shardwise.measure.operators.needed import OperatorItem
from shardwise.measure.world import JOIN_S
from shardwise.torch_operators import load_torch

PATIENCE_S = 300.0
"""How long started siblings wait for each other before they consider one lost."""


class SiblingLost(ShardwiseError):
    """A measuring process has ended or does not answer."""

    exit_code = 1


class _Together:
    """The siblings of one process, as `bench.Peers`."""

    def __init__(self, barrier: Any, finished: Any, ranks: int) -> None:
        self._barrier = barrier
        self._finished = finished
        self._ranks = ranks

    def ready(self) -> None:
        self._barrier.wait(PATIENCE_S)

    def done(self) -> None:
        with self._finished.get_lock():
            self._finished.value += 1

    def busy(self) -> bool:
        return bool(self._finished.value % self._ranks)


def _serve(
    number: int, connection: Connection, barrier: Any, finished: Any, effort: Effort
) -> None:
    """Runs one sibling: measures what comes over the connection until None comes."""
    torch = load_torch()
    torch.set_num_threads(threads_of(effort))
    crowd = 1
    if effort.device == "cpu":
        crowd = ranks_on_core(allowed_cores(), number, effort.ranks)
        settle_on_cpu(number, effort.ranks)
    bench = Bench(torch, effort, crowd)
    peers = _Together(barrier, finished, effort.ranks)
    connection.send("ready")
    try:
        while (asked := connection.recv()) is not None:
            item, budget_s = asked
            connection.send(bench.times(item, budget_s, peers))
    except (EOFError, BrokenBarrierError, ConnectionError):
        return  # the starter or a sibling has ended


class Siblings:
    """`ranks` processes, started with the block and ended with it."""

    def __init__(self, effort: Effort) -> None:
        self.threads = threads_of(effort)
        self._effort = effort
        context = multiprocessing.get_context("spawn")
        # Kept here: the children lose them if the starter drops them.
        self._shared = (context.Barrier(effort.ranks), context.Value("q", 0))
        self._ends: list[Connection] = []
        self.processes: list[BaseProcess] = []
        self._theirs: list[Connection] = []
        for number in range(effort.ranks):
            mine, theirs = context.Pipe()
            process = context.Process(
                target=_serve,
                args=(number, theirs, *self._shared, effort),
                name=f"measuring {number}",
                daemon=True,
            )
            self._ends.append(mine)
            self.processes.append(process)
            self._theirs.append(theirs)

    def __enter__(self) -> Siblings:
        try:
            for process, theirs in zip(self.processes, self._theirs, strict=True):
                process.start()
                theirs.close()
            for end in self._ends:
                self._hear(end, JOIN_S)
        except BaseException:
            self._end(0.0)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end(PATIENCE_S if error is None else 0.0)

    def _end(self, patience_s: float) -> None:
        """Asks all to end, and terminates those that have not after `patience_s`."""
        for end in self._ends:
            self._tell(end, None)
        for process in self.processes:
            if process.pid is not None:
                process.join(patience_s)
                process.terminate()
                process.join()

    def measure(self, item: OperatorItem, budget_s: float) -> Timing | str:
        """Returns the timing of one item over all siblings, or the reason why there is none."""
        for end in self._ends:
            if not self._tell(end, (item, budget_s)):
                raise SiblingLost("a measuring process has ended")
        outcomes = [self._hear(end) for end in self._ends]
        reasons = [outcome for outcome in outcomes if isinstance(outcome, str)]
        if reasons:
            return reasons[0]
        return timing([time for outcome in outcomes for time in outcome])

    def _tell(self, end: Connection, what: Any) -> bool:
        try:
            end.send(what)
        except (BrokenPipeError, OSError):
            return False
        return True

    def _hear(self, end: Connection, patience_s: float = PATIENCE_S) -> Any:
        try:
            if not end.poll(patience_s):
                raise SiblingLost(f"a measuring process has not answered for {patience_s:g} s")
            return end.recv()
        except (EOFError, ConnectionError):
            raise SiblingLost("a measuring process has ended") from None
