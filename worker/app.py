"""The Celery worker: one process, a thread for each solve, each solve in a child of its own.

Threads, not Celery's prefork: the child that computes is ours to limit, to watch and to kill, and
a worker that waits costs the memory of one process.
"""

from __future__ import annotations

import logging
import os
import warnings
from time import sleep
from typing import Any

from celery import Celery
from celery.exceptions import SecurityWarning
from celery.signals import worker_shutting_down
from celery.worker.consumer import Consumer
from prometheus_client import start_http_server

from service.base.logs import set_up_logs
from service.base.settings import Settings
from service.base.store_failures import StoreUnavailable
from service.base.traces import set_up_traces
from service.edge.doorbell import SOLVE, Doorbell, configure
from service.edge.metrics import WorkerMetrics
from service.store.database import Database
from service.store.schema import require_schema
from worker.deliverer import Deliverer
from worker.lookout import Lookout
from worker.sweeper import Sweeper
from worker.tasks import Worker

log = logging.getLogger(__name__)
PATIENCE = 6
"""Housekeeping takes longer than any call, and no client waits for it."""


RECORDED_WITHIN_S = 5.0
"""What a stopping worker has to give back its jobs, after their grace."""

RETRY_S = 1.0
"""Between two attempts to start on a broker that refuses."""

LEAST_SLOTS = 2
"""A short solve has a slot next to a long one, even on a host with one core."""


class PatientConsumer(Consumer):  # type: ignore[misc]
    """Tries again once a second; Celery's own tries and logs as fast as the broker refuses."""

    def on_connection_error_before_connected(self, exc: Exception) -> None:
        """Pauses after an answer of the broker that is an error."""
        super().on_connection_error_before_connected(exc)
        sleep(RETRY_S)


def slots_of(settings: Settings) -> int:
    """Returns the number of concurrent solves: by default one per two cores, as a solve may use
    several."""
    return settings.concurrency or max(LEAST_SLOTS, (os.cpu_count() or 1) // 2)


def make_celery(worker: Worker) -> Celery:
    """Returns the Celery application with its one task."""
    app = configure(Celery("shardwise"), worker.settings)
    app.conf.update(
        worker_prefetch_multiplier=1,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        worker_send_task_events=False,
        worker_enable_remote_control=False,
        # By default a worker ends for good when a broker refuses writes.
        broker_channel_error_retry=True,
        worker_consumer="worker.app:PatientConsumer",
    )

    @app.task(name=SOLVE)  # type: ignore[untyped-decorator]
    def solve(job_id: str) -> None:
        """Computes the next job. The id is for releases before 0005, which claim that job."""
        try:
            worker.answer_ring()
        except StoreUnavailable as error:
            # The row is still there: its lease runs out, or it was never claimed.
            log.warning("left to the sweeper: %s", error, extra={"job": job_id})

    return app


def run_worker(settings: Settings) -> int:
    """Works until asked to stop. Returns the exit status.

    Raises `BadInput` for a schema on which this release does not work, at the start or later.
    """
    set_up_logs(settings.log_level, settings.log_format)
    set_up_traces()
    # Celery warns root of pickled tasks; ours are JSON (service/edge/doorbell.py).
    warnings.filterwarnings("ignore", category=SecurityWarning)
    deadline_s = PATIENCE * settings.database_s
    database = Database(settings.database, settings.database_pool, deadline_s=deadline_s)
    require_schema(database)
    slots = slots_of(settings)
    worker = Worker(settings, database, WorkerMetrics(), slots)
    doorbell = Doorbell(settings)
    sweeper = Sweeper(worker, doorbell, slots)
    lookout = Lookout(worker)
    deliverer = Deliverer(settings, database, worker.metrics.webhooks)
    if settings.worker_metrics_port:
        start_http_server(
            settings.worker_metrics_port, settings.worker_metrics_host, worker.metrics.registry
        )

    def stopping(**_: Any) -> None:
        worker.stopping.set()

    worker_shutting_down.connect(stopping)
    celery = make_celery(worker).Worker(
        pool="threads",
        concurrency=slots,
        loglevel=settings.log_level.upper(),
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
        quiet=True,
        optimization="fair",
    )
    sweeper.start()
    lookout.start()
    deliverer.start()
    try:
        celery.start()
    finally:
        worker.stopping.set()
        lookout.join()
        worker.wait_until_idle(settings.stop_grace_s + RECORDED_WITHIN_S)
        sweeper.stop()
        deliverer.stop()
        doorbell.close()
        database.close()
    if sweeper.refused is not None:
        raise sweeper.refused
    return int(celery.exitcode or 0)
