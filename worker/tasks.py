"""The one task: claims the next job, computes it outside any session, records under its lease.

A ring says that there is work, not which: what is claimed is the next job by the fair order
(service/questions/fair_order.py). A worker with several slots keeps one of them for short jobs.
"""

from __future__ import annotations

import logging
import os
import threading
from dataclasses import dataclass, field
from functools import partial
from time import monotonic

from service.base.background import LONG_SOLVE, SHORT_SOLVE
from service.base.logs import JOB_ID, REQUEST_ID
from service.base.problems import failure
from service.base.settings import Settings
from service.base.store_failures import StoreUnavailable
from service.base.traces import span
from service.edge.metrics import WorkerMetrics
from service.store import leases
from service.store.attained import charge, weight_of
from service.store.curve_points import hand_back
from service.store.database import Database
from service.store.graphs import graph_content
from service.store.leases import Claim
from service.store.results import etag_of
from worker.curves import CurveChild, count_limit_s
from worker.giving_way import GaveWay, HeldJob
from worker.solving import Answered, Child, End, Failed, Lost, Progress, Stopped

log = logging.getLogger(__name__)
STOPS_WITHIN_S = 5.0
"""A child that was asked to stop is killed after this time."""

RECORD_TRIES_S = 120.0
"""How long to wait with an answer for a database that cannot even renew its lease."""


@dataclass(frozen=True)
class Returned:
    """The worker is stopping: the job goes back to the queue."""


Outcome = End | Returned | GaveWay
_UNHEARD = object()


@dataclass
class Worker:
    """The state of one worker process."""

    settings: Settings
    database: Database
    metrics: WorkerMetrics
    slots: int = 1
    stopping: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    _jobs: dict[str, HeldJob] = field(default_factory=dict)
    _claiming: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._free = threading.BoundedSemaphore(self.slots)

    @property
    def threads(self) -> int:
        """Threads of one solve: the cores are shared by the slots."""
        return self.settings.solve_threads or max(1, (os.cpu_count() or 1) // self.slots)

    def answer_ring(self) -> str:
        """Waits for a free slot, then computes the next job. Returns how that ended."""
        with self._free:
            return self.solve_next()

    def take_up(self) -> bool:
        """Computes the next job in a thread of its own, if there are a free slot and a job.

        A ring goes to the worker that takes it first, even if its only free slot is for short jobs:
        a worker with a slot for other jobs finds them here.
        """
        if self.stopping.is_set() or not self._free.acquire(blocking=False):
            return False
        claim = None
        try:
            claim = self._claim() if self._any_waiting() else None
        finally:
            if claim is None:
                self._free.release()
        if claim is None:
            return False
        threading.Thread(target=self._solve_and_free, args=(claim,), daemon=True).start()
        return True

    def wait_until_idle(self, within_s: float) -> None:
        """Waits for the solves of a worker that is stopping."""
        until = monotonic() + within_s
        for _ in range(self.slots):
            self._free.acquire(timeout=max(until - monotonic(), 0.0))

    def _solve_and_free(self, claim: Claim) -> None:
        try:
            self._solve(claim)
        except StoreUnavailable as error:
            log.warning("left to the sweeper: %s", error, extra={"job": claim.job_id})
        finally:
            self._free.release()

    def solve_next(self) -> str:
        """Claims the next job that this worker may take and computes it."""
        if self.stopping.is_set():
            return "stopping"
        claim = self._claim()
        return "nothing to do" if claim is None else self._solve(claim)

    def _longest_s(self) -> float | None:
        """Returns the longest estimate that may be claimed; None: any."""
        short_s = self.settings.short_job_s
        if not short_s or self.slots == 1:
            return None
        return short_s if self._long(short_s) >= self.slots - 1 else None

    def _long(self, short_s: float) -> int:
        return sum(not job.is_short(short_s) for job in list(self._jobs.values()))

    def _must_give_way(self, claim: Claim) -> bool:
        """Returns whether a short job waits and this one holds the slot for it (giving_way.py)."""
        job, short_s = self._jobs[claim.token], self.settings.short_job_s
        if self.slots == 1 or not job.outruns(short_s):
            return False
        with self._claiming:  # one at a time: a single slot is for short jobs
            job.gives_way = self._long(short_s) >= self.slots and self._short_waits(short_s)
        return job.gives_way

    def _short_waits(self, short_s: float) -> bool:
        try:
            with self.database.read() as session:
                return leases.short_waits(session, short_s, self.settings.max_running)
        except StoreUnavailable:
            return False

    def _any_waiting(self) -> bool:
        with self.database.read() as session:
            return leases.any_waiting(session, self._longest_s())

    def _claim(self) -> Claim | None:
        # One at a time: how many long jobs this worker has decides what it may take.
        waited = None
        with self._claiming:
            with self.database.write() as session:
                claim = leases.claim_next(
                    session,
                    self.settings.lease_s,
                    self.settings.max_attempts,
                    longest_s=self._longest_s(),
                    max_running=self.settings.max_running,
                )
                if claim is not None:
                    waited = leases.first_wait(session, claim)
            if waited is not None:
                self.metrics.queue.started(*waited)
            if claim is not None:
                self._jobs[claim.token] = HeldJob(claim, monotonic(), claim.cost_s)
            return claim

    def _solve(self, claim: Claim) -> str:
        # The thread goes on to other jobs: its log lines between two jobs name neither.
        request, job = REQUEST_ID.set(claim.request_id), JOB_ID.set(claim.job_id)
        try:
            return self._solve_claimed(claim)
        finally:
            REQUEST_ID.reset(request)
            JOB_ID.reset(job)
            del self._jobs[claim.token]
            self.ended.set()

    def _solve_claimed(self, claim: Claim) -> str:
        started = monotonic()
        parent = {"traceparent": claim.trace} if claim.trace else None
        with span(f"solve {claim.kind}", parent, job=claim.job_id):
            outcome = self._compute(claim)
        seconds = monotonic() - started
        self.metrics.solves.labels(claim.kind, outcome).inc()
        self.metrics.duration.labels(claim.kind).observe(seconds)
        self.metrics.estimates.ended(
            claim.kind, outcome, seconds, claim.cost_s, gave_way=claim.gave_way
        )
        self.metrics.queue.solved(weight_of(claim.limits), seconds)
        log.info(
            "%s %s",
            claim.kind,
            outcome,
            extra={
                "seconds": round(seconds, 3),
                "estimate": round(claim.cost_s, 3),
                "attempt": claim.attempts,
            },
        )
        return outcome

    def _compute(self, claim: Claim) -> str:
        with self.database.read() as session:
            graph = graph_content(session, claim.graph_id)
        if graph is None:
            error = failure("invalid", f"the graph {claim.graph_id} was deleted")
            return self._record(claim, Failed(error))
        memory = claim.limits.get("solve_memory_bytes", self.settings.solve_memory_bytes)
        gives_way = SHORT_SOLVE if claim.cost_s <= self.settings.short_job_s else LONG_SOLVE
        count_s = count_limit_s(self._limit_s(claim), self.settings.count_time_s)
        question, threads = claim.question, self.threads
        start = partial(Child, question, graph, int(memory), threads, gives_way, count_s)
        of_curve = claim.kind == "curve"
        most = self.settings.max_attempts
        child = CurveChild(self.database, claim, start, most) if of_curve else start()
        try:
            event = self._attend(claim, child)
        finally:
            child.kill()
        return "lost" if event is None else self._record(claim, event)

    def _limit_s(self, claim: Claim) -> float:
        return float(claim.limits.get("solve_time_s", self.settings.solve_time_s))

    def _attend(self, claim: Claim, child: Child | CurveChild) -> Outcome | None:
        """Listens to the child, renews the lease, passes on a cancellation.

        Returns None if the lease is lost.
        """
        limit_s = self._limit_s(claim)
        started = renewed = monotonic()
        progress = Progress("starting", 0.0)
        kill_at = float("inf")
        stopped_at: float | None = None
        while True:
            event = child.next(min(self.settings.heartbeat_s, 0.25))
            if isinstance(event, Progress):
                progress = event
            elif isinstance(event, End):
                return event
            clock = monotonic()
            if clock > kill_at:
                return Stopped()
            if clock - started > limit_s:
                end = child.over(failure("time-limit", f"more than {limit_s:g} s were needed"))
                if end is not None:
                    return end
            if self.stopping.is_set():
                stopped_at = stopped_at or clock
                if clock - stopped_at > self.settings.stop_grace_s:
                    return Returned()
            due_s = self.settings.heartbeat_s / (4 if event is not None else 1)
            if clock - renewed >= due_s:
                wish = self._beat(claim, progress, clock - renewed)
                if wish is None:
                    return None
                if wish is not _UNHEARD:
                    renewed = clock
                if wish is False and self._must_give_way(claim):
                    short_s = self.settings.short_job_s
                    return self._jobs[claim.token].gave_way(progress, short_s)
                if wish is True and kill_at == float("inf"):
                    child.cancel()
                    kill_at = clock + STOPS_WITHIN_S

    def _beat(self, claim: Claim, progress: Progress, silent_s: float) -> bool | object | None:
        try:
            with self.database.write() as session:
                wish = leases.keep_alive(
                    session, claim, self.settings.lease_s, progress.stage, progress.progress
                )
                more_s = 0.0 if wish is None else self._overdue_s(claim)
                if more_s:
                    charge(session, claim.tenant_id, more_s, weight_of(claim.limits))
            self._jobs[claim.token].charged_s += more_s
            return wish
        except StoreUnavailable as error:
            # The lease may still be ours when the database is back: its clock decides, not ours.
            log.warning("the lease could not be renewed for %.0f s: %s", silent_s, error)
            return _UNHEARD

    def _overdue_s(self, claim: Claim) -> float:
        """Returns what is charged on top of the estimate when a job runs longer: the same amount
        again."""
        job = self._jobs[claim.token]
        return job.charged_s if monotonic() - job.since > job.charged_s else 0.0

    def _record(self, claim: Claim, event: Outcome) -> str:
        """Records how the job ended, waiting for a database that is away or full.

        A full disk may refuse the answer and still take claims: the lease is kept, or the job
        would be computed again and again, and fail as if it had killed its workers.
        """
        renewed = monotonic()
        while True:
            try:
                return self._write(claim, event)
            except StoreUnavailable as error:
                if monotonic() - renewed > RECORD_TRIES_S or self.stopping.is_set():
                    raise
                log.warning("the outcome cannot be recorded yet: %s", error)
            self.stopping.wait(1.0)
            wish = self._beat(claim, Progress("recording", 1.0), monotonic() - renewed)
            if wish is None:
                return "lost"
            if wish is not _UNHEARD:
                renewed = monotonic()

    def _write(self, claim: Claim, event: Outcome) -> str:
        lost: list[str] = []
        with self.database.write() as session:
            if isinstance(event, Answered):
                etag = etag_of(event.content)
                recorded = leases.finish(session, claim, event.content, etag, event.answer_id)
                outcome = "done"
            elif isinstance(event, Failed):
                recorded, outcome = leases.fail(session, claim, event.error), "failed"
            elif isinstance(event, Stopped):
                recorded, outcome = leases.cancelled(session, claim), "cancelled"
                hand_back(session, claim)
            elif isinstance(event, Lost):
                log.error("the child ended with %s: %s", event.status, event.errors)
                recorded, outcome = leases.give_back(session, claim, counts=True), "crashed"
                _, lost = leases.close_hopeless(session, self.settings.max_attempts, claim.job_id)
            elif isinstance(event, GaveWay):
                recorded, outcome = leases.give_way(session, claim, event.cost_s), "gave way"
                hand_back(session, claim)
            else:
                recorded, outcome = leases.give_back(session, claim, counts=False), "returned"
                hand_back(session, claim)
            if recorded:
                job = self._jobs[claim.token]
                leases.settle(session, claim, monotonic() - job.since, job.charged_s)
        self.metrics.queue.failed("worker-lost", len(lost))
        if recorded and isinstance(event, Failed):
            self.metrics.queue.failed(event.error["type"])
        return outcome if recorded else "lost"
