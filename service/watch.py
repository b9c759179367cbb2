"""Watched jobs: one look at the database for all watchers of a process."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from starlette.concurrency import run_in_threadpool

from service.problems import Problem
from service.store.database import Database, StoreUnavailable
from service.store.jobs import has_ended, look_at
from service.store.tables import Job

log = logging.getLogger(__name__)
SEVERAL = 500


class Watch:
    """Looks every `every_s` seconds at all jobs that somebody watches, while somebody does."""

    def __init__(self, database: Database, every_s: float, max_watchers: int) -> None:
        self._database = database
        self._every_s = every_s
        self._most = max_watchers
        self._watched: Counter[str] = Counter()
        self._seen: dict[str, Job | None] = {}
        self._changed = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None

    def require_room(self) -> None:
        """A problem when as many streams are open as may be."""
        if self._watched.total() >= self._most:
            raise Problem(
                "too-many-watchers",
                f"{self._most} event streams are open",
                headers={"Retry-After": "5"},
            )

    @asynccontextmanager
    async def on(self, job: Job) -> AsyncIterator[Callable[[], Job | None]]:
        """Watch a job; gives a function that says how it was last seen (None: deleted)."""
        self._watched[job.id] += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._look())
        try:
            yield lambda: self._seen.get(job.id, job)
        finally:
            self._watched[job.id] -= 1
            if self._watched[job.id] <= 0:
                del self._watched[job.id]
                self._seen.pop(job.id, None)

    async def changed(self, timeout_s: float) -> None:
        """Wait for the next look, at most so long."""
        async with self._changed:
            try:
                await asyncio.wait_for(self._changed.wait(), timeout_s)
            except TimeoutError:
                return

    async def _look(self) -> None:
        while self._watched:
            unended = [i for i in self._watched if not self._is_over(i)]
            try:
                for start in range(0, len(unended), SEVERAL):
                    some = unended[start : start + SEVERAL]
                    found = await run_in_threadpool(self._read, some)
                    self._seen.update({i: found.get(i) for i in some if i in self._watched})
            except StoreUnavailable as error:
                log.warning("watched jobs cannot be looked at: %s", error)
            async with self._changed:
                self._changed.notify_all()
            await asyncio.sleep(self._every_s)

    def _is_over(self, job_id: str) -> bool:
        if job_id not in self._seen:
            return False
        job = self._seen[job_id]
        return job is None or has_ended(job)

    def _read(self, ids: list[str]) -> dict[str, Job]:
        with self._database.read() as session:
            return look_at(session, ids)
