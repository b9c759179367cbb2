"""One call of a tool: computed in a thread, with progress and cancelling."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
import anyio.to_thread

from shardwise.cost.options import Progress

PERIOD_S = 0.25
"""Between two reports of progress, in seconds."""
Report = Callable[[float, str], Awaitable[None]]
"""Called with how much is done, which only grows, and the stage."""
A = TypeVar("A")


class Growth:
    """Progress that only grows: each stage of a search counts from 0 to 1, and stages add up."""

    def __init__(self) -> None:
        self._stages, self._stage, self._said = 0, "", -1.0

    def of(self, stage: str, fraction: float) -> float | None:
        """Returns how much is done; None if that is no more than before."""
        if self._stage and stage != self._stage:
            self._stages += 1
        self._stage = stage
        done = self._stages + min(max(fraction, 0.0), 1.0)
        if done <= self._said:
            return None
        self._said = done
        return done


class Listener:
    """What a search in a thread says about itself, and what it is told."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._latest = ("", 0.0)

    def heard(self, stage: str, fraction: float) -> bool:
        """Takes what a search says of itself; returns False once it shall end."""
        self._latest = (stage, fraction)
        return not self._stop.is_set()

    def stop(self) -> None:
        """Makes the search end when it next asks."""
        self._stop.set()

    async def pass_on(self, report: Report) -> None:
        """Reports progress until it is cancelled."""
        growth = Growth()
        while True:
            await anyio.sleep(PERIOD_S)
            stage, fraction = self._latest
            if stage and (done := growth.of(stage, fraction)) is not None:
                await report(done, stage)


async def computed(
    compute: Callable[[Progress], A], report: Report, limiter: anyio.CapacityLimiter
) -> A:
    """Returns what `compute` returns, in a thread, when `limiter` has room.

    When the call is cancelled, the search is told to end, and this waits until it has, so that the
    next one has all cores. Raises what `compute` raises.
    """
    listener = Listener()
    outcome: list[A] = []
    refused: list[Exception] = []

    def compute_here() -> None:
        # Not raised through the task group, which would wrap it.
        try:
            outcome.append(compute(listener.heard))
        except Exception as error:
            refused.append(error)

    async def attend() -> None:
        try:
            await listener.pass_on(report)
        finally:
            listener.stop()

    async with limiter, anyio.create_task_group() as tasks:
        tasks.start_soon(attend)
        await anyio.to_thread.run_sync(compute_here)
        tasks.cancel_scope.cancel()
    if refused:
        raise refused[0]
    return outcome[0]
