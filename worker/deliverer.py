"""The deliverer: sends what waits in the outbox, fairly, and records what became of it.

One thread claims and records, others send; no session is open while anything is sent. A webhook has
one delivery under way in a worker, a tenant and a receiver's host a fourth of the senders; a tenant
whose attempts are slow, or not known yet, has one, and all slow ones have half (sender_pace.py):
receivers that never answer delay their own events and those of their tenants.
"""

from __future__ import annotations

import logging
import queue
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from time import monotonic

from service.base.receivers import reach_of
from service.base.settings import Settings, pauses
from service.base.store_failures import StoreUnavailable
from service.base.webhook_signing import Keyring, keyring, signature
from service.edge.metrics import WebhookMetrics
from service.store.database import Database
from service.store.deliveries import Due, Parcel, claim, delivered, due, give_up, postpone
from service.store.webhook_tables import TEST
from shardwise.errors import BadInput
from worker.sender_pace import SenderPace
from worker.webhook_post import Outcome, Poster

log = logging.getLogger(__name__)
LOOK_S = 1.0
GONE = 410
"""Standard Webhooks: the receiver wants no further events."""


class Deliverer(threading.Thread):
    """Looks every second, and whenever a sender is free, until it is stopped."""

    def __init__(self, settings: Settings, database: Database, metrics: WebhookMetrics) -> None:
        super().__init__(name="deliverer", daemon=True)
        self._settings = settings
        self._database = database
        self._metrics = metrics
        self._poster = Poster(reach_of(settings), settings.webhook_timeout_s)
        self._pauses = pauses(settings.webhook_retry_s) or ()
        self._senders = ThreadPoolExecutor(max(settings.webhook_senders, 1), "webhook")
        self._pace = SenderPace(settings.webhook_timeout_s)
        self._sent: queue.SimpleQueue[tuple[Parcel, Outcome, float]] = queue.SimpleQueue()
        self._unrecorded: list[tuple[Parcel, Outcome]] = []
        self._under_way: dict[str, Due] = {}
        self._wake = threading.Event()
        self._stopped = threading.Event()

    @property
    def lease_s(self) -> float:
        """How long a claim lasts: a sender's whole attempt, and the time to record it."""
        return 2 * self._settings.webhook_timeout_s + 5.0

    def run(self) -> None:
        """Delivers until stopped."""
        while not self._stopped.is_set():
            self._round()
            self._wake.wait(LOOK_S)
            self._wake.clear()

    def stop(self) -> None:
        """Stops; what is being sent is waited for and recorded."""
        self._stopped.set()
        self._wake.set()
        self.join()
        self._senders.shutdown()
        self._attempted(self._record)

    def _round(self) -> None:
        self._attempted(self._record)
        self._attempted(self._start)

    def _attempted(self, act: Callable[[], None]) -> None:
        try:
            act()
        except StoreUnavailable as error:
            log.warning("webhooks wait: %s", error)
        except BadInput as error:
            log.error("webhooks wait: %s", error)
        except Exception:
            # A defect here must not end the thread: every later event would be lost on it.
            log.exception("webhooks wait")

    def _start(self) -> None:
        keys = keyring(self._settings)
        free = self._settings.webhook_senders - len(self._under_way)
        if free <= 0 or not keys.keys:
            return
        with self._database.read() as session:
            waiting = due(session, keys.keys)
        chosen = chosen_of(
            waiting,
            self._under_way.values(),
            self._settings.webhook_senders,
            self._pace,
        )
        if not chosen:
            return
        with self._database.write() as session:
            parcels = claim(session, chosen, self.lease_s)
        by_webhook = {one.webhook_id: one for one in chosen}
        for parcel in parcels:
            self._under_way[parcel.webhook_id] = by_webhook[parcel.webhook_id]
            self._senders.submit(self._send, parcel, keys)

    def _send(self, parcel: Parcel, keys: Keyring) -> None:
        started = monotonic()
        try:
            outcome = self._post(parcel, keys)
        except Exception:
            log.exception("a delivery failed", extra={"delivery": parcel.delivery_id})
            outcome = Outcome(None, "a defect of the sender")
        self._sent.put((parcel, outcome, monotonic() - started))
        self._wake.set()

    def _post(self, parcel: Parcel, keys: Keyring) -> Outcome:
        if parcel.attempts > len(self._pauses) + 1:
            return Outcome(None, "workers ended while they sent it")
        secret = keys.secret(parcel.key_fingerprint, parcel.salt)
        timestamp = int(parcel.at)
        headers = {
            "webhook-id": parcel.delivery_id,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": signature(secret, parcel.delivery_id, timestamp, parcel.body),
        }
        started = monotonic()
        outcome = self._poster.post(parcel.url, parcel.tenant_id, headers, parcel.body)
        self._metrics.duration.observe(monotonic() - started)
        return outcome

    def _record(self) -> None:
        while not self._sent.empty():
            parcel, outcome, seconds = self._sent.get()
            self._pace.note(parcel.tenant_id, seconds)
            self._unrecorded.append((parcel, outcome))
        while self._unrecorded:
            parcel, outcome = self._unrecorded[0]
            name = self._write(parcel, outcome)
            self._metrics.attempts.labels(name).inc()
            del self._unrecorded[0]
            self._under_way.pop(parcel.webhook_id, None)
            log.info(
                "webhook %s",
                name,
                extra={"delivery": parcel.delivery_id, "webhook": parcel.webhook_id,
                       "attempt": parcel.attempts, "reason": outcome.reason},
            )  # fmt: skip

    def _write(self, parcel: Parcel, outcome: Outcome) -> str:
        """Returns the outcome: delivered, postponed, given up, or lost with its lease."""
        status, reason = outcome.status, outcome.reason
        last = parcel.event == TEST or parcel.attempts > len(self._pauses)
        with self._database.write() as session:
            if outcome.taken and status is not None:
                name, recorded = "delivered", delivered(session, parcel, status)
            elif status == GONE:
                name, recorded = "given up", give_up(session, parcel, status, reason, 0.0)
            elif last:
                disable_s = self._settings.webhook_disable_s
                name, recorded = "given up", give_up(session, parcel, status, reason, disable_s)
            else:
                pause_s = self._pauses[parcel.attempts - 1] * random.uniform(0.8, 1.2)
                name, recorded = "postponed", postpone(session, parcel, status, reason, pause_s)
        return name if recorded else "lost"


def chosen_of(
    waiting: Iterable[Due],
    under_way: Iterable[Due],
    senders: int,
    pace: SenderPace,
) -> list[Due]:
    """Returns which deliveries may start: of each webhook one at a time, of each quick tenant and
    each receiver's host a fourth of the senders, of any other tenant one, and of all slow ones
    half; the webhook that has waited longest first."""
    busy = list(under_way)
    webhooks = {one.webhook_id for one in busy}
    tenants = Counter(one.tenant_id for one in busy)
    hosts = Counter(one.authority for one in busy)
    share = max(1, senders // 4)
    left = max(1, senders // 2) - sum(pace.is_slow(one.tenant_id) for one in busy)
    chosen: list[Due] = []
    for one in waiting:
        if len(busy) + len(chosen) >= senders:
            break
        slow = pace.is_slow(one.tenant_id)
        most = share if pace.is_quick(one.tenant_id) else 1
        full = tenants[one.tenant_id] >= most or hosts[one.authority] >= share
        if one.webhook_id in webhooks or full or (slow and left <= 0):
            continue
        if slow:
            left -= 1
        tenants[one.tenant_id] += 1
        hosts[one.authority] += 1
        chosen.append(one)
    return chosen
