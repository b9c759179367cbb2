"""Answers kept in memory: immutable bytes, bounded, looked at again after a while."""

from __future__ import annotations

import threading
from collections import OrderedDict
from time import monotonic

from service.store.results import Stored

FRESH_S = 5.0
"""After so long the database is asked whether the answer is still there (a tenant may delete)."""

Key = tuple[str, str]
"""(tenant, what was asked): a content id, or a query as it came."""


class AnswerCache:
    """Least recently used answers up to `limit_bytes`."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._size = 0
        self._entries: OrderedDict[Key, tuple[float, Stored]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Key) -> Stored | None:
        """The answer, unless it is unknown or due to be looked at again."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None or entry[0] < monotonic():
                return None
            self._entries.move_to_end(key)
            return entry[1]

    def put(self, key: Key, stored: Stored) -> None:
        """Keep an answer."""
        size = len(stored.content)
        if size > self._limit // 4:
            return
        with self._lock:
            self._drop(key)
            self._entries[key] = (monotonic() + FRESH_S, stored)
            self._size += size
            while self._size > self._limit:
                self._drop(next(iter(self._entries)))

    def clear_tenant(self, tenant: str) -> None:
        """Forget all answers of a tenant."""
        with self._lock:
            for key in [key for key in self._entries if key[0] == tenant]:
                self._drop(key)

    def _drop(self, key: Key) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._size -= len(entry[1].content)
