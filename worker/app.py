"""The Celery worker: one process, a thread for each solve, each solve in a child of its own.

Threads, not Celery's prefork: the child that computes is ours to limit, to watch and to kill, and
a worker that waits costs the memory of one process.
"""

from __future__ import annotations

import logging
import os
from typing import Any

from celery import Celery
from celery.signals import worker_shutting_down
from prometheus_client import start_http_server

from service.doorbell import SOLVE, Doorbell, configure
from service.logs import set_up_logs
from service.metrics import WorkerMetrics
from service.schema import require_schema
from service.settings import Settings
from service.store.database import Database, StoreUnavailable
from service.traces import set_up_traces
from worker.sweeper import Sweeper
from worker.tasks import Worker

log = logging.getLogger(__name__)


def slots_of(settings: Settings) -> int:
    """Solves at once: the solver itself uses several cores."""
    return settings.concurrency or max(1, (os.cpu_count() or 1) // 2)


def make_celery(worker: Worker) -> Celery:
    """The Celery application with its one task."""
    app = configure(Celery("shardwise"), worker.settings)
    app.conf.update(
        worker_prefetch_multiplier=1,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        worker_send_task_events=False,
        worker_enable_remote_control=False,
    )

    @app.task(name=SOLVE)  # type: ignore[untyped-decorator]
    def solve(job_id: str) -> None:
        try:
            worker.solve(job_id)
        except StoreUnavailable as error:
            # The row is still there: its lease runs out, or it was never claimed.
            log.warning("left to the sweeper: %s", error, extra={"job": job_id})

    return app


def run_worker(settings: Settings) -> int:
    """Work until told to stop; the exit status.

    Raises `BadInput` for a schema on which this release does not work, be it that it became so.
    """
    set_up_logs(settings.log_level, settings.log_format)
    set_up_traces()
    database = Database(settings.database, settings.database_pool)
    require_schema(database)
    worker = Worker(settings, database, WorkerMetrics())
    slots = slots_of(settings)
    doorbell = Doorbell(settings)
    sweeper = Sweeper(worker, doorbell, slots)
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
    try:
        celery.start()
    finally:
        worker.stopping.set()
        sweeper.stop()
        doorbell.close()
        database.close()
    if sweeper.refused is not None:
        raise sweeper.refused
    return int(celery.exitcode or 0)
