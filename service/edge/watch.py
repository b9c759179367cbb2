"""Watched rows (jobs, launches): one query of the database for all watchers of a process."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Generic, TypeVar

from sqlalchemy.orm import Session

from service.base.fair_pool import FairPool
from service.base.store_failures import StoreUnavailable
from service.store.database import Database
from service.store.launch_tables import Launch
from service.store.tables import Job

log = logging.getLogger(__name__)
SEVERAL = 500


Row = TypeVar("Row", Job, Launch)


class Watch(Generic[Row]):
    """Reads all watched rows every `every_s` seconds, while there are any.

    `pool` has a thread for it, by `name`. `find` reads rows by their ids; `is_over` returns True if
    a row will not change any more.
    """

    def __init__(
        self,
        name: str,
        database: Database,
        every_s: float,
        pool: FairPool,
        find: Callable[[Session, list[str]], dict[str, Row]],
        is_over: Callable[[Row], bool],
    ) -> None:
        self._database = database
        self._find: Callable[[Session, list[str]], dict[str, Row]] = find
        self._is_ended: Callable[[Row], bool] = is_over
        self._every_s = every_s
        self._pool = pool
        self._name = name
        self._watched: Counter[str] = Counter()
        self._seen: dict[str, Row | None] = {}
        self._next_reading = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def on(self, row: Row) -> AsyncIterator[Callable[[], Row | None]]:
        """Watches a row. Yields a function that returns its last state (None if deleted)."""
        self._watched[row.id] += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._poll())
        try:
            yield lambda: self._seen.get(row.id, row)
        finally:
            self._watched[row.id] -= 1
            if self._watched[row.id] <= 0:
                del self._watched[row.id]
                self._seen.pop(row.id, None)

    async def changed(self, timeout_s: float) -> None:
        """Waits for the next reading of the rows, at most `timeout_s`."""
        # A condition's lock would have to be had again by each watcher, and one that is cancelled
        # twice meanwhile leaves it taken, or gives back another's.
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._next_reading.wait()

    async def _poll(self) -> None:
        while self._watched:
            unended = [i for i in self._watched if not self._is_over(i)]
            try:
                for start in range(0, len(unended), SEVERAL):
                    some = unended[start : start + SEVERAL]
                    rows = await self._pool.run(self._name, self._read, some)
                    self._seen.update({i: rows.get(i) for i in some if i in self._watched})
            except StoreUnavailable as error:
                log.warning("watched rows cannot be read: %s", error)
            read, self._next_reading = self._next_reading, asyncio.Event()
            read.set()
            await asyncio.sleep(self._every_s)

    def _is_over(self, row_id: str) -> bool:
        if row_id not in self._seen:
            return False
        row = self._seen[row_id]
        return row is None or self._is_ended(row)

    def _read(self, ids: list[str]) -> dict[str, Row]:
        with self._database.read() as session:
            return self._find(session, ids)
