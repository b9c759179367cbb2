"""Reports go from the spool to the service, oldest first, until each is answered for."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable

from agent.clock import now_s
from agent.service import Refusal, Service, Unreachable
from agent.spool import Report, Spool

log = logging.getLogger(__name__)
MOST_REPORTS = 100
MOST_BYTES = 6 * 2**20
LONGEST_PAUSE_S = 15.0
_NOT_READ = frozenset({400, 413, 422})
"""The service cannot take the request as it is: the reports are tried one by one."""


class Shipper(threading.Thread):
    """Ships as long as the agent lives."""

    def __init__(self, connect: Callable[[], Service], spool: Spool) -> None:
        super().__init__(name="reports", daemon=True)
        self._connect = connect
        self._spool = spool
        self._stopped = threading.Event()
        self._most = MOST_REPORTS
        self._pause_s = 0.0

    def run(self) -> None:
        """Ships until stopped."""
        with self._connect() as service:
            while not self._stopped.wait(self._pause_s):
                self._spool.arrived.wait(1.0)
                self.ship(service)

    def finish(self, wait_s: float) -> None:
        """Gives it up to `wait_s` to ship what waits, and stops it."""
        until = now_s() + wait_s
        while len(self._spool) and now_s() < until and self.is_alive():
            self._stopped.wait(0.05)
        self._stopped.set()
        if left := len(self._spool):
            log.warning("reports stay spooled until the next start", extra={"reports": left})

    def ship(self, service: Service) -> None:
        """Hands in one batch, and sets how long to wait before the next."""
        reports = self._spool.batch(self._most, MOST_BYTES)
        if not reports:
            self._pause_s = 0.0
            return
        try:
            reply = service.report(reports)
        except Unreachable as error:
            log.warning("reports wait: %s", error, extra={"reports": len(self._spool)})
            self._wait(error.retry_after_s)
        except Refusal as error:
            self._refused(reports, error)
        else:
            self._answered(reports, reply)

    def _answered(self, reports: list[Report], reply: dict[str, object]) -> None:
        accepted, refused = reply.get("accepted"), reply.get("refused")
        done = [str(item) for item in accepted] if isinstance(accepted, list) else []
        for entry in refused if isinstance(refused, list) else []:
            done.append(str(entry["id"]))
            log.warning("a report is refused: %s", entry.get("reason"))
        known = {report["id"] for report in reports}
        self._spool.forget([report_id for report_id in done if report_id in known])
        if known & set(done):
            self._pause_s = 0.0
            self._most = MOST_REPORTS
        else:
            self._wait(0.0)

    def _refused(self, reports: list[Report], error: Refusal) -> None:
        if error.status not in _NOT_READ:
            log.warning("reports wait: %s", error)
            self._wait(0.0)
        elif len(reports) > 1:
            self._most = 1
        else:
            # If kept, it would block all later ones for ever.
            log.error("a report cannot be handed in and is dropped: %s", error)
            self._spool.forget([reports[0]["id"]])
            self._pause_s = 0.0

    def _wait(self, asked_s: float) -> None:
        grown_s = min(LONGEST_PAUSE_S, max(0.25, self._pause_s * 2))
        self._pause_s = max(asked_s, grown_s * random.uniform(0.7, 1.0))
