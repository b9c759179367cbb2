"""The sweeper: rings again for rows that no worker has taken, and reports this worker as alive.

It also sees which agents have gone silent, ends their launches and places those that wait.

Every worker has one. Two may ring for the same row: the update of `rung_at` lets only one of them,
and a job that is rung for twice is claimed once.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import threading
from time import monotonic

from service.base.store_failures import StoreUnavailable
from service.edge.doorbell import Doorbell
from service.store import leases
from service.store.gang_sweep import sweep as sweep_gangs
from service.store.gangs import rules_of
from service.store.keys import expire_keys
from service.store.records import worker_gone, worker_seen
from service.store.retention import Retention
from service.store.schema import require_schema
from service.store.tenant_deletion import sweep_deletions
from shardwise.errors import BadInput
from worker.tasks import Worker

log = logging.getLogger(__name__)
MOST_AT_ONCE = 200
HOUSEKEEPING_S = 600.0
AT_MOST_S = 2.0
"""Time that one sweep spends on housekeeping; the next ones continue it."""


class Sweeper(threading.Thread):
    """Sweeps every `sweep_s` seconds until it is stopped."""

    def __init__(self, worker: Worker, doorbell: Doorbell, slots: int) -> None:
        super().__init__(name="sweeper", daemon=True)
        self.id = f"worker_{secrets.token_hex(8)}"
        self._worker = worker
        self._doorbell = doorbell
        self._slots = slots
        self._stopped = threading.Event()
        self._cleaned_at = -HOUSEKEEPING_S
        self._retention = Retention(worker.database, worker.settings)
        self.refused: BadInput | None = None

    def run(self) -> None:
        """Sweeps until stopped."""
        while not self._stopped.is_set():
            try:
                self.sweep()
            except StoreUnavailable as error:
                log.warning("cannot sweep: %s", error)
            except BadInput as error:
                # A newer release took the schema beyond this one: its workers go on.
                log.error("this worker stops: %s", error)
                self.refused = error
                os.kill(os.getpid(), signal.SIGTERM)
                return
            self._stopped.wait(self._worker.settings.sweep_s)

    def stop(self) -> None:
        """Stops, and removes this worker from the list of living workers."""
        self._stopped.set()
        self.join()
        try:
            with self._worker.database.write() as session:
                worker_gone(session, self.id)
        except StoreUnavailable as error:
            log.warning("cannot sign off: %s", error)

    def sweep(self) -> list[str]:
        """Sweeps once. Returns the jobs that were rung for.

        Raises `BadInput` when this release no longer works on the schema.
        """
        settings, database = self._worker.settings, self._worker.database
        require_schema(database)
        with database.write() as session:
            worker_seen(session, self.id, socket.gethostname(), os.getpid(), self._slots)
            _, lost = leases.close_hopeless(session, settings.max_attempts)
            expire_keys(session)
        self._worker.metrics.queue.failed("worker-lost", len(lost))
        if monotonic() - self._cleaned_at > HOUSEKEEPING_S and self._retention.sweep(AT_MOST_S):
            self._cleaned_at = monotonic()
        sweep_gangs(database, rules_of(settings))
        sweep_deletions(database, rules_of(settings), 2 * settings.auth_cache_s)
        in_broker = self._doorbell.waiting()
        if in_broker is None:
            return []
        with database.write() as session:
            # Rows behind a long queue have their message already: only what the broker lacks.
            lacking = leases.idle(session) - in_broker
            ids = leases.to_ring(session, settings.ring_again_s, min(lacking, MOST_AT_ONCE))
        if ids:
            log.info("ringing again", extra={"jobs": len(ids)})
            self._worker.metrics.rung_again.inc(len(ids))
            self._doorbell.ring(ids)
        return ids
