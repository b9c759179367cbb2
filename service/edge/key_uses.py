"""When keys were last used: noted in memory, written now and then outside of requests.

A request only adds its key to a set. A separate thread writes what was noted, so that a database
that is slow, full or read-only neither delays nor fails a request; what cannot be written is
forgotten, and noted again at the key's next use.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from time import monotonic

from sqlalchemy import or_, update
from sqlalchemy.exc import SQLAlchemyError

from service.base.store_failures import StoreUnavailable
from service.store.database import Database, now
from service.store.tables import Key

log = logging.getLogger(__name__)
EVERY_S = 60.0
"""Shortest time between two writes of one key's use."""

PAUSE_S = 2.0
MAX_NOTED = 10_000


class KeyUses:
    """The uses that one process has seen."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._noted: OrderedDict[str, float] = OrderedDict()
        self._waiting: set[str] = set()
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def note(self, key_id: str | None) -> None:
        """Notes that a key was used just now; None means no key."""
        if key_id is None:
            return
        clock = monotonic()
        with self._lock:
            if clock - self._noted.get(key_id, -EVERY_S) < EVERY_S:
                return
            self._noted[key_id] = clock
            self._noted.move_to_end(key_id)
            self._waiting.add(key_id)
            while len(self._noted) > MAX_NOTED:
                forgotten, _ = self._noted.popitem(last=False)
                self._waiting.discard(forgotten)

    def start(self) -> None:
        """Starts the writing thread."""
        self._thread = threading.Thread(target=self._run, name="key-uses", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stops the thread, without waiting long for a database that does not answer."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(1.0)

    def write(self) -> int:
        """Writes what was noted. Returns the number of keys; 0 if the database takes no writes."""
        with self._lock:
            waiting, self._waiting = sorted(self._waiting), set()
        if not waiting:
            return 0
        stale = or_(Key.last_used_at.is_(None), Key.last_used_at < now() - EVERY_S / 2)
        try:
            with self._database.write() as session:
                # One by one and in order: two processes cannot wait for each other.
                for key_id in waiting:
                    session.execute(
                        update(Key).where(Key.id == key_id, stale).values(last_used_at=now())
                    )
        except (StoreUnavailable, SQLAlchemyError) as error:
            log.debug("the last use of %d keys is not written: %s", len(waiting), error)
            return 0
        return len(waiting)

    def _run(self) -> None:
        while not self._stopped.wait(PAUSE_S):
            self.write()
