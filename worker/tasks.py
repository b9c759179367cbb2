"""The one task: loads, computes outside any session, records under its lease."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field
from time import monotonic

from service.logs import JOB_ID, REQUEST_ID
from service.metrics import WorkerMetrics
from service.problems import failure
from service.settings import Settings
from service.store import leases
from service.store.database import Database, StoreUnavailable
from service.store.graphs import graph_content
from service.store.leases import Claim
from service.store.results import etag_of
from service.traces import span
from worker.solving import Answered, Child, Failed, Lost, Stopped, Told

log = logging.getLogger(__name__)
STOPS_WITHIN_S = 5.0
"""A child that was asked to stop has so long, then it is killed."""

RECORD_TRIES_S = 120.0
"""An answer is worth waiting for a database that is away; its lease may be lost meanwhile."""


@dataclass(frozen=True)
class Returned:
    """The worker is stopping: the job is somebody else's."""


Outcome = Answered | Failed | Stopped | Lost | Returned
_UNHEARD = object()


@dataclass
class Worker:
    """What one worker process holds."""

    settings: Settings
    database: Database
    metrics: WorkerMetrics
    stopping: threading.Event = field(default_factory=threading.Event)

    def solve(self, job_id: str) -> str:
        """Compute a job, unless somebody else does; answers how that ended."""
        if self.stopping.is_set():
            return "stopping"
        with self.database.write() as session:
            claim = leases.claim(session, job_id, self.settings.lease_s, self.settings.max_attempts)
        if claim is None:
            return "not mine"
        REQUEST_ID.set(claim.request_id)
        JOB_ID.set(claim.job_id)
        started = monotonic()
        parent = {"traceparent": claim.trace} if claim.trace else None
        with span(f"solve {claim.kind}", parent, job=claim.job_id):
            outcome = self._compute(claim)
        seconds = monotonic() - started
        self.metrics.solves.labels(claim.kind, outcome).inc()
        self.metrics.duration.labels(claim.kind).observe(seconds)
        log.info(
            "%s %s",
            claim.kind,
            outcome,
            extra={"seconds": round(seconds, 3), "attempt": claim.attempts},
        )
        return outcome

    def _compute(self, claim: Claim) -> str:
        with self.database.read() as session:
            graph = graph_content(session, claim.graph_id)
        if graph is None:
            error = failure("invalid", f"the graph {claim.graph_id} was deleted")
            return self._record(claim, Failed(error))
        memory = claim.limits.get("solve_memory_bytes", self.settings.solve_memory_bytes)
        child = Child(claim.question, graph, int(memory), self.settings.solve_threads)
        try:
            event = self._attend(claim, child)
        finally:
            child.kill()
        return "lost" if event is None else self._record(claim, event)

    def _attend(self, claim: Claim, child: Child) -> Outcome | None:
        """Listen to the child, keep the lease, pass on cancel; None: the lease is lost."""
        limit_s = float(claim.limits.get("solve_time_s", self.settings.solve_time_s))
        started = renewed = monotonic()
        told = Told("starting", 0.0)
        kill_at = float("inf")
        stopped_at: float | None = None
        while True:
            event = child.next(min(self.settings.heartbeat_s, 0.25))
            if isinstance(event, Told):
                told = event
            elif event is not None:
                return event
            clock = monotonic()
            if clock > kill_at:
                return Stopped()
            if clock - started > limit_s:
                return Failed(failure("time-limit", f"more than {limit_s:g} s were needed"))
            if self.stopping.is_set():
                stopped_at = stopped_at or clock
                if clock - stopped_at > self.settings.stop_grace_s:
                    return Returned()
            due_s = self.settings.heartbeat_s / (4 if event is not None else 1)
            if clock - renewed >= due_s:
                wish = self._beat(claim, told, clock - renewed)
                if wish is None:
                    return None
                if wish is not _UNHEARD:
                    renewed = clock
                if wish is True and kill_at == float("inf"):
                    child.cancel()
                    kill_at = clock + STOPS_WITHIN_S

    def _beat(self, claim: Claim, told: Told, silent_s: float) -> bool | object | None:
        try:
            with self.database.write() as session:
                return leases.keep_alive(
                    session, claim, self.settings.lease_s, told.stage, told.progress
                )
        except StoreUnavailable as error:
            # The lease may still be ours when the database is back: its clock decides, not ours.
            log.warning("the lease could not be renewed for %.0f s: %s", silent_s, error)
            return _UNHEARD

    def _record(self, claim: Claim, event: Outcome) -> str:
        """Write how it ended, waiting for a database that is away."""
        tried = monotonic()
        while True:
            try:
                return self._write(claim, event)
            except StoreUnavailable as error:
                if monotonic() - tried > RECORD_TRIES_S or self.stopping.is_set():
                    raise
                log.warning("the outcome cannot be recorded yet: %s", error)
                self.stopping.wait(1.0)

    def _write(self, claim: Claim, event: Outcome) -> str:
        with self.database.write() as session:
            if isinstance(event, Answered):
                etag = etag_of(event.content)
                held = leases.finish(session, claim, event.content, etag, event.answer_id)
                outcome = "done"
            elif isinstance(event, Failed):
                held, outcome = leases.fail(session, claim, event.error), "failed"
            elif isinstance(event, Stopped):
                held, outcome = leases.cancelled(session, claim), "cancelled"
            elif isinstance(event, Lost):
                log.error("the child ended with %s: %s", event.status, event.errors)
                held, outcome = leases.give_back(session, claim, counts=True), "crashed"
                leases.close_hopeless(session, self.settings.max_attempts, claim.job_id)
            else:
                held, outcome = leases.give_back(session, claim, counts=False), "returned"
        return outcome if held else "lost"
