"""Answers kept in memory: immutable bytes, bounded with all they take, looked at again after a
while.

No tenant's answers push out those of a tenant that holds less: what goes is the least recently
used answer of the tenant that holds most.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from sys import getsizeof
from time import monotonic

from service.store.results import Stored

FRESH_S = 5.0
"""After so long the database is asked whether the answer is still there (a tenant may delete)."""
SHARE = 4
"""A tenant holds at most this part of the whole while others hold something."""
ENTRY_BYTES = 600
"""An entry without the texts in it: its objects, and its places in tables that are half empty."""
TENANT_BYTES = 1000
"""The same of a tenant's own table."""

Key = tuple[str, bytes]
"""(tenant, digest of what was asked)."""


@dataclass(slots=True)
class Entry:
    """An answer, until when it is fresh, and the bytes it counts."""

    stored: Stored
    until: float
    size: int


@dataclass(slots=True)
class Held:
    """What one tenant holds, least recently used first."""

    size: int
    entries: OrderedDict[bytes, Entry] = field(default_factory=OrderedDict)


def size_of(digest: bytes, stored: Stored) -> int:
    """Returns the bytes of memory that an entry counts."""
    texts = (digest, stored.content, stored.etag, stored.media_type)
    return ENTRY_BYTES + sum(map(getsizeof, texts))


class AnswerCache:
    """Least recently used answers up to `limit_bytes`."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._size = 0
        self._tenants: dict[str, Held] = {}
        self._lock = threading.Lock()

    @property
    def size_bytes(self) -> int:
        """The bytes that are counted now."""
        return self._size

    def get(self, key: Key, *, late_s: float = 0.0) -> Stored | None:
        """Returns the answer, unless it is unknown or has been due to be looked at for `late_s`."""
        tenant, digest = key
        with self._lock:
            held = self._tenants.get(tenant)
            entry = held.entries.get(digest) if held is not None else None
            if held is None or entry is None or entry.until + late_s < monotonic():
                return None
            held.entries.move_to_end(digest)
            return entry.stored

    def put(self, key: Key, stored: Stored) -> None:
        """Keeps an answer, unless it alone would take a tenant's share."""
        tenant, digest = key
        size = size_of(digest, stored)
        if size + self._tenant_bytes(tenant) > self._limit // SHARE:
            return
        with self._lock:
            self._drop(tenant, digest)
            held = self._tenants.get(tenant)
            if held is None:
                held = self._tenants[tenant] = Held(self._tenant_bytes(tenant))
                self._size += held.size
            held.entries[digest] = Entry(stored, monotonic() + FRESH_S, size)
            held.size += size
            self._size += size
            while len(self._tenants) > 1 and held.size > self._limit // SHARE:
                self._drop_oldest(tenant)
            while self._size > self._limit:
                self._drop_oldest(max(self._tenants, key=lambda name: self._tenants[name].size))

    def clear_tenant(self, tenant: str) -> None:
        """Forgets all answers of a tenant."""
        with self._lock:
            held = self._tenants.pop(tenant, None)
            if held is not None:
                self._size -= held.size

    def _tenant_bytes(self, tenant: str) -> int:
        return TENANT_BYTES + getsizeof(tenant)

    def _drop_oldest(self, tenant: str) -> None:
        self._drop(tenant, next(iter(self._tenants[tenant].entries)))

    def _drop(self, tenant: str, digest: bytes) -> None:
        held = self._tenants.get(tenant)
        entry = held.entries.pop(digest, None) if held is not None else None
        if held is None or entry is None:
            return
        held.size -= entry.size
        self._size -= entry.size
        if not held.entries:
            self._size -= held.size
            del self._tenants[tenant]
