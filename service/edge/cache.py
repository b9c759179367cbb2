"""Answers kept in memory: immutable bytes with a bound on their memory, revalidated after a while.

A tenant's answers never evict those of a tenant that holds less: the least recently used answer of
the tenant that holds the most is evicted.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from sys import getsizeof
from time import monotonic

from service.store.results import Stored

FRESH_S = 5.0
"""After this time the database is asked whether the answer still exists (a tenant may delete)."""
SHARE = 4
"""A tenant holds at most one part in this many while other tenants hold something."""
ENTRY_BYTES = 600
"""An entry without its texts: its objects, and its slots in tables that are half empty."""
TENANT_BYTES = 1000
"""The same for a tenant's own table."""

Key = tuple[str, bytes]
"""(tenant, digest of the question)."""


@dataclass(slots=True)
class Entry:
    """An answer, the time until which it is fresh, and the bytes that it counts for."""

    stored: Stored
    until: float
    size: int


@dataclass(slots=True)
class TenantShare:
    """The cached answers of one tenant, least recently used first."""

    size: int
    entries: OrderedDict[bytes, Entry] = field(default_factory=OrderedDict)


def size_of(digest: bytes, stored: Stored) -> int:
    """Returns the bytes of memory that an entry counts for."""
    texts = (digest, stored.content, stored.etag, stored.media_type)
    return ENTRY_BYTES + sum(map(getsizeof, texts))


class AnswerCache:
    """Least recently used answers up to `limit_bytes`."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._size = 0
        self._tenants: dict[str, TenantShare] = {}
        self._lock = threading.Lock()

    @property
    def size_bytes(self) -> int:
        """Bytes in use."""
        return self._size

    def get(self, key: Key, *, late_s: float = 0.0) -> Stored | None:
        """Returns the answer; None if it is unknown or has been stale for `late_s`."""
        tenant, digest = key
        with self._lock:
            share = self._tenants.get(tenant)
            entry = share.entries.get(digest) if share is not None else None
            if share is None or entry is None or entry.until + late_s < monotonic():
                return None
            share.entries.move_to_end(digest)
            return entry.stored

    def put(self, key: Key, stored: Stored) -> None:
        """Stores an answer, unless it alone would exceed a tenant's share."""
        tenant, digest = key
        size = size_of(digest, stored)
        if size + self._tenant_bytes(tenant) > self._limit // SHARE:
            return
        with self._lock:
            self._drop(tenant, digest)
            share = self._tenants.get(tenant)
            if share is None:
                share = self._tenants[tenant] = TenantShare(self._tenant_bytes(tenant))
                self._size += share.size
            share.entries[digest] = Entry(stored, monotonic() + FRESH_S, size)
            share.size += size
            self._size += size
            while len(self._tenants) > 1 and share.size > self._limit // SHARE:
                self._drop_oldest(tenant)
            while self._size > self._limit:
                self._drop_oldest(max(self._tenants, key=lambda name: self._tenants[name].size))

    def clear_tenant(self, tenant: str) -> None:
        """Removes all answers of a tenant."""
        with self._lock:
            share = self._tenants.pop(tenant, None)
            if share is not None:
                self._size -= share.size

    def _tenant_bytes(self, tenant: str) -> int:
        return TENANT_BYTES + getsizeof(tenant)

    def _drop_oldest(self, tenant: str) -> None:
        self._drop(tenant, next(iter(self._tenants[tenant].entries)))

    def _drop(self, tenant: str, digest: bytes) -> None:
        share = self._tenants.get(tenant)
        entry = share.entries.pop(digest, None) if share is not None else None
        if share is None or entry is None:
            return
        share.size -= entry.size
        self._size -= entry.size
        if not share.entries:
            self._size -= share.size
            del self._tenants[tenant]
