"""The checks of /readyz: database, writes to it, broker; each within a deadline.

A check that is late is not started again while it runs: each check uses at most one thread, however
many requests come.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import monotonic
from typing import Any, Generic, TypeVar

from service.base.fair_pool import FairPool
from service.base.settings import Settings
from service.base.store_failures import StoreUnavailable
from service.edge.doorbell import Doorbell
from service.store.database import Database
from service.store.records import living_workers
from service.store.schema import require_schema
from service.store.write_probe import try_write
from shardwise.errors import BadInput

log = logging.getLogger(__name__)
T = TypeVar("T")

WITHIN_S = 2.0
"""/readyz answers within this time, even if a check does not; Kubernetes waits 3 s."""

PROBE_S = 4.0
"""Longest statement of a probe, including that of /metrics."""

WRITES_EVERY_S = 5.0
"""Shortest time between two tried writes while writes work."""

ANSWERED_S = 10.0
"""A worker that wrote within this time answers: workers do every `sweep_s` (5 s by default)."""

FULL_S = 10.0
"""After a call met a full disk, a probe that finds room is ignored for this time."""


class Check(Generic[T]):
    """One thing to check, by one thread at a time."""

    def __init__(self, pool: FairPool, act: Callable[[], T], late: T) -> None:
        self._pool = pool
        self._act = act
        self._late = late
        self._task: asyncio.Task[T] | None = None

    async def within(self, seconds: float) -> T:
        """Returns the result of the check, or `late` if it takes longer."""
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._pool.run("ready", self._act))
        await asyncio.wait({self._task}, timeout=seconds)
        return self._task.result() if self._task.done() else self._late


class Readiness:
    """The checks of one service process."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        probed: Database,
        doorbell: Doorbell,
        pool: FairPool,
    ) -> None:
        """`database` is the one that calls use, `probed` the same one on probes' connections."""
        self._silent_s = settings.lease_s
        self._answered_s = max(ANSWERED_S, 2 * settings.sweep_s)
        self._calls = database
        self._probed = probed
        self._tried_at = float("-inf")
        self._last_outcome = "ok"
        self._stored = Check(pool, self._check_database, ("unavailable", 0, 0))
        self._writes = Check(pool, self._check_writes, "unavailable")
        self._broker = Check(pool, doorbell.takes_writes, "unreachable")

    async def checks(self) -> dict[str, Any]:
        """Returns the member `checks` of /readyz."""
        (database, workers, answered), writes, broker = await asyncio.gather(
            self._stored.within(WITHIN_S),
            self._writes.within(WITHIN_S),
            self._broker.within(WITHIN_S),
        )
        if database != "ok":
            writes = "unavailable"
        return {
            "database": database,
            "writes": writes,
            "broker": broker,
            "workers": workers,
            "workers_answered": answered,
            "answered_within_s": self._answered_s,
        }

    def _check_database(self) -> tuple[str, int, int]:
        """Returns how the database is, how many workers live, and how many answered just now."""
        try:
            require_schema(self._probed)
            with self._probed.read() as session:
                living = len(living_workers(session, self._silent_s))
                return "ok", living, len(living_workers(session, self._answered_s))
        except StoreUnavailable as error:
            # Its reason names hosts and users: that is for the log, not for the client.
            log.warning("not ready: %s", error)
            return "unavailable", 0, 0
        except BadInput as error:
            return str(error), 0, 0

    def _check_writes(self) -> str:
        """Returns `ok`, `full` or `refused`, by a small write now and then."""
        full_at = self._calls.full_at
        well = self._last_outcome == "ok" and full_at is None
        if well and monotonic() - self._tried_at < WRITES_EVERY_S:
            return self._last_outcome
        self._tried_at = monotonic()
        try:
            outcome = try_write(self._probed, with_room=not well)
        except StoreUnavailable as error:
            log.warning("no write could be tried: %s", error)
            return "unavailable"
        if outcome == "ok" and full_at is not None:
            if monotonic() - full_at < FULL_S:
                outcome = "full"
            elif self._calls.full_at == full_at:
                self._calls.full_at = None
        if outcome != self._last_outcome:
            log.warning("writes: %s", outcome)
        if outcome == "ok" and self._calls.ballast is not None:
            self._calls.ballast.lay()
        self._last_outcome = outcome
        return outcome
