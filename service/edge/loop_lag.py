"""How late the event loop is: whatever holds it delays every answer of the process."""

from __future__ import annotations

import asyncio

from prometheus_client import CollectorRegistry, Histogram

EVERY_S = 0.1
LAG_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class LoopLag:
    """Sleeps again and again; what a sleep takes longer is the time that others held the loop."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.lag = Histogram(
            "shardwise_event_loop_lag_seconds",
            "How late the event loop came back to a task that was due.",
            buckets=LAG_S,
            registry=registry,
        )
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Measures on the running loop until `stop`."""
        self._task = asyncio.get_running_loop().create_task(self._measure())

    def stop(self) -> None:
        """Stops measuring."""
        if self._task is not None:
            self._task.cancel()

    async def _measure(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + EVERY_S
            await asyncio.sleep(EVERY_S)
            self.lag.observe(max(loop.time() - due, 0.0))
