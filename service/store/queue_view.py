"""The position of a job: its place, what it waits for, when it is expected to start and to end.

The fair order is simulated over the whole queue (questions/fair_order.py), once for all callers
within a second or so. Everything in it is an estimate: jobs come, are cancelled, and take longer or
shorter than expected.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import monotonic
from typing import Any, get_args

from sqlalchemy.orm import Session

from service.questions.fair_order import Place, Slots, places
from service.questions.forecast import left_s
from service.store.ids import iso
from service.store.jobs import has_ended, look_at
from service.store.queue_rows import QueueRows, Running, queue_rows
from service.store.tables import Job
from shardwise.documents.jobs import WaitReason

MOST = 20_000
"""Queued jobs that are simulated; later ones have no place."""

REASONS = get_args(WaitReason)
"""The codes of the reasons for which a job waits."""

FRESH_S = 1.0
BUSY = 20.0
"""A view that takes t seconds to read is kept for at least `BUSY` · t."""


@dataclass(frozen=True)
class Seen:
    """The queue as it was read, with every queued job's place."""

    rows: QueueRows
    places: dict[str, Place]
    running: dict[str, Running]
    of_tenants: Counter[str]


class QueueView:
    """The view that one service process has of the queue."""

    def __init__(self, lease_s: float, short_job_s: float, max_running: int) -> None:
        self._lease_s = lease_s
        self._short_job_s = short_job_s
        self._max_running = max_running
        self._lock = threading.Lock()
        self._seen: Seen | None = None
        self._until = 0.0

    def look(self, session: Session) -> Callable[[Job], dict[str, Any] | None]:
        """Reads the queue unless the view is fresh. Returns the function that locates a job."""
        # While another thread reads, the last view will do: no caller waits for the database.
        if self._lock.acquire(blocking=self._seen is None):
            try:
                self._refresh_if_stale(session)
            finally:
                self._lock.release()
        return self.of

    def _refresh_if_stale(self, session: Session) -> None:
        if self._seen is None or monotonic() > self._until:
            started = monotonic()
            self._seen = self._read(session)
            ended = monotonic()
            self._until = ended + max(FRESH_S, BUSY * (ended - started))

    def look_at(self, session: Session, ids: Iterable[str]) -> dict[str, Job]:
        """Returns the jobs of these ids for their watchers, and refreshes the view of the queue."""
        jobs = look_at(session, ids)
        if not all(has_ended(job) for job in jobs.values()):
            self.look(session)
        return jobs

    def of(self, job: Job) -> dict[str, Any] | None:
        """Returns where a job is by the last view; None if it has ended or is not in the view."""
        seen = self._seen
        if seen is None:
            return None
        if job.state == "queued" and job.id in seen.places:
            return self._of_queued(seen, job)
        if job.state == "running" and job.id in seen.running:
            return _of_running(seen, job)
        return None

    def _read(self, session: Session) -> Seen:
        rows = queue_rows(session, MOST, self._lease_s)
        slots = slots_of(rows, self._short_job_s)
        return Seen(
            rows,
            places(rows.waiting, rows.shares, slots),
            {job.id: job for job in rows.running},
            Counter(job.tenant for job in rows.running),
        )

    def _of_queued(self, seen: Seen, job: Job) -> dict[str, Any]:
        place = seen.places[job.id]
        code, words = self._reason(seen, job, place)
        known = place.starts_s < float("inf")
        return {
            "place": place.place,
            "of": seen.rows.queued,
            "code": code,
            "waits_for": words,
            "starts_at": _moment(seen, place.starts_s) if known else None,
            "ends_at": _moment(seen, place.ends_s) if known else None,
        }

    def _reason(self, seen: Seen, job: Job, place: Place) -> tuple[str, str]:
        if not seen.rows.slots:
            return "worker", "a worker"
        own = seen.rows.limits.get(job.tenant_id, {})
        most = int(own.get("max_running", self._max_running))
        if 0 < most <= seen.of_tenants[job.tenant_id]:
            return "max-running", f"one of your {most} running jobs to end"
        if place.higher:
            return "own-priority", f"{_jobs(place.higher)} with a higher priority"
        if place.before:
            return "own-jobs", f"{_jobs(place.before)} that come first"
        if place.place > 1:
            return "other-tenants", "other tenants' turns"
        return "slot", "a free slot"


def _moment(seen: Seen, seconds: float) -> str | None:
    """Returns the time `seconds` after the view, in whole seconds since it is an estimate."""
    return iso(float(round(seen.rows.at + seconds)))


def _jobs(count: int) -> str:
    return "1 of your own jobs" if count == 1 else f"{count} of your own jobs"


def _of_running(seen: Seen, job: Job) -> dict[str, Any]:
    left_s = left_of(seen.running[job.id])
    return {
        "place": None,
        "of": seen.rows.queued,
        "code": "running",
        "waits_for": None,
        "starts_at": iso(job.started_at),
        "ends_at": _moment(seen, left_s),
    }


def left_of(job: Running) -> float:
    """Returns the seconds that a running job is still expected to take."""
    return left_s(job.kind, job.cost_s, job.since_s, job.progress, job.progressed_s)


def slots_of(rows: QueueRows, short_job_s: float) -> Slots:
    """Returns when each slot of the living workers becomes free of its running job.

    Workers of two slots or more keep one for short jobs (worker/tasks.py); slots of all workers
    are pooled.
    """
    short = sum(1 for slots in rows.slots if slots > 1 and short_job_s)
    free = {True: short, False: sum(rows.slots) - short}
    at: dict[bool, list[float]] = {True: [], False: []}
    for job in sorted(rows.running, key=lambda job: job.cost_s):
        is_short = max(job.cost_s, job.since_s) <= short_job_s and free[True] > 0
        if free[is_short] > 0:
            free[is_short] -= 1
            at[is_short].append(left_of(job))
    return Slots(
        tuple(at[False] + [0.0] * free[False]),
        tuple(at[True] + [0.0] * free[True]),
        short_job_s,
    )
