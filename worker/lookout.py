"""The lookout: a free slot finds queued jobs without a message from the broker.

A message may be lost, or taken by a worker whose only free slot is for short jobs, which leaves a
job queued that this worker could compute.
"""

from __future__ import annotations

import logging
import threading

from service.base.store_failures import StoreUnavailable
from worker.tasks import Worker

log = logging.getLogger(__name__)
LOOK_S = 1.0
AFTER_S = 0.1


class Lookout(threading.Thread):
    """Looks every second and after each solve, until the worker stops."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(name="lookout", daemon=True)
        self._worker = worker

    def run(self) -> None:
        """Looks for jobs until the worker stops."""
        while not self._worker.stopping.is_set():
            if self._worker.ended.wait(LOOK_S):
                # A message that waits in this process comes first: there is one for most jobs.
                self._worker.ended.clear()
                self._worker.stopping.wait(AFTER_S)
            try:
                while self._worker.take_up():
                    log.debug("took up a job without a ring")
            except StoreUnavailable as error:
                log.debug("cannot look for jobs: %s", error)
