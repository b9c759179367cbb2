"""Gangs in a service process: places them, sweeps expired leases, lets agents wait.

An agent that waits for work costs neither a thread nor a database session: all that wait in a
process share one query of the database every `every_s` seconds, and are woken at once by what this
process places itself.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic

from service.base.fair_pool import FairPool
from service.base.fair_slots import Places
from service.base.store_failures import StoreUnavailable
from service.store.agents import agents_with_work
from service.store.database import Database
from service.store.gang_sweep import place_all, sweep
from service.store.gangs import Rules

log = logging.getLogger(__name__)
SEVERAL = 500
LAZILY_S = 1.0
"""Shortest time between two lazy sweeps of a process."""


class GangWatch:
    """One for each process; the database decides everything."""

    def __init__(
        self, database: Database, rules: Rules, every_s: float, polls: Places, pool: FairPool
    ) -> None:
        """`polls`: places of waiting agents; `pool`: threads that look for their work."""
        self.rules = rules
        self._database = database
        self._every_s = every_s
        self._polls = polls
        self._pool = pool
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._swept_at = float("-inf")
        self._sweeping = threading.Lock()

    def place(self) -> None:
        """Places what can be placed, and wakes the agents that got work."""
        self._wake(place_all(self._database, self.rules))

    def sweep_lazily(self) -> None:
        """Sweeps expired leases, unless this process just did."""
        if monotonic() - self._swept_at < LAZILY_S or not self._sweeping.acquire(blocking=False):
            return
        try:
            self._swept_at = monotonic()
            self._wake(sweep(self._database, self.rules))
        finally:
            self._sweeping.release()

    def has_work(self, agent_id: str) -> bool:
        """Returns True if there is an assignment that this agent may have now."""
        return bool(self._read([agent_id]))

    @asynccontextmanager
    async def waiting(self, agent_id: str, lane: str) -> AsyncIterator[asyncio.Event]:
        """Yields an event that is set when the agent may have work.

        Raises `Problem` if too many agents wait, of its lane or of all.
        """
        with self._polls.one(lane):
            self._loop = asyncio.get_running_loop()
            woken = asyncio.Event()
            self._waiting.setdefault(agent_id, set()).add(woken)
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(self._poll())
            try:
                yield woken
            finally:
                others = self._waiting[agent_id]
                others.discard(woken)
                if not others:
                    del self._waiting[agent_id]

    def _wake(self, agent_ids: list[str]) -> None:
        if agent_ids and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._set, agent_ids)

    def _set(self, agent_ids: list[str]) -> None:
        for agent_id in agent_ids:
            for woken in self._waiting.get(agent_id, ()):
                woken.set()

    async def _poll(self) -> None:
        while self._waiting:
            ids = list(self._waiting)
            try:
                for start in range(0, len(ids), SEVERAL):
                    agent_ids = await self._pool.run(
                        "agents", self._read, ids[start : start + SEVERAL]
                    )
                    self._set(sorted(agent_ids))
                await self._pool.run("agents", self.sweep_lazily)
            except StoreUnavailable as error:
                log.warning("cannot look for work for waiting agents: %s", error)
            await asyncio.sleep(self._every_s)

    def _read(self, ids: list[str]) -> set[str]:
        with self._database.read() as session:
            return agents_with_work(session, ids, self.rules)
