"""The pools of a service process: which calls wait for each other, and which never do.

Calls of tenants run in `reads` and `writes`: a tenant has at most half of each, so that its slow
calls leave room for others, and writers that wait for a lock do not hold up readers. While others
ask, its calls have a quarter of a core (service/base/time_shares.py). What occupies a core for long
(uploads, large bodies) runs in `ingest`. Probes, and the ringing of a broker that may not answer,
have threads of their own, as has `watching`, which reads what streams and agents wait for. Answers
from memory need no thread. Callers are looked up in `lookups`, agents enrol in `enrolments`, and
people are signed in, moved and signed out in `logins`: no tenant is known there, so shares go by
address or person. The identity provider is waited for without a thread.

`streams`, `polls`, `archives`, `uploads` and `bodies` are open at once, without threads. Pieces of
archives are made in `packing`, in turns: a reader that takes none holds no thread. Operators have a
lane of their own everywhere (service/base/shares.py); service/base/limits.py is the list.
"""

from __future__ import annotations

import os

from starlette.requests import Request

from service.base.byte_budget import ByteBudget
from service.base.fair_pool import FairPool
from service.base.fair_slots import Gone, Places
from service.base.settings import Settings
from service.base.shares import Shares, share_of, unshared
from service.base.time_shares import TimeShares

LARGE_BYTES = 2**18
"""Larger bodies are not read among ordinary calls: reading holds the interpreter."""


KEPT_PLACES = 16
"""Streams, archives and waiting agents of operators beyond those of tenants."""


class Pools:
    """One for each service process."""

    def __init__(self, settings: Settings) -> None:
        cores = os.cpu_count() or 1
        waiting = settings.calls_waiting
        self.times = TimeShares()
        self.reads = FairPool("reads", settings.database_pool, 0, waiting, self.times)
        self.writes = FairPool("writes", settings.database_pool, 0, waiting, self.times)
        self.rings = FairPool("rings", 8, 0, waiting)
        self.pages = FairPool("pages", max(4, cores), 0, waiting)
        self.unpacking = FairPool("unpacking", max(4, cores), 0, waiting)
        self.probes = FairPool("probes", 6, 3)
        self.watching = FairPool("watching", 3, 1)
        self.lookups = FairPool("lookups", 4, 2, waiting)
        self.enrolments = FairPool("enrolments", 2, 1, waiting)
        self.logins = FairPool("logins", 2, 1, waiting)
        self.packing = FairPool("packing", 2, 1, waiting, self.times)
        self.ingest = FairPool(
            "ingest",
            settings.ingest_slots or cores,
            settings.ingest_share,
            max(waiting, settings.uploads_at_once),
        )
        self.uploads = Places(unshared(settings.uploads_at_once), "uploads in work")
        self.streams = _places(settings.max_watchers, settings.watchers_share, "event streams open")
        self.polls = _places(settings.max_polls, settings.polls_share, "agents waiting")
        self.archives = Places(
            Shares(settings.max_exports, settings.exports_share, KEPT_PLACES),
            "archives being written",
        )
        self.bodies = ByteBudget(
            Shares(settings.bodies_bytes, settings.bodies_bytes // 4, settings.bodies_bytes // 4)
        )

    def close(self) -> None:
        """Takes no more work."""
        for pool in vars(self).values():
            if isinstance(pool, FairPool):
                pool.close()


def _places(most: int, share: int, what: str) -> Places:
    """Returns places for what waits; a tenant has half of them unless `share` says otherwise."""
    return Places(Shares(most, share_of(most, share), KEPT_PLACES), what, slug="too-many-watchers")


def gone_of(request: Request) -> Gone:
    """Returns an awaitable that ends when the client of a request disconnects after its body was
    read."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    return gone


def expected_bytes(request: Request, limit: int, max_gzip_ratio: int) -> int:
    """Returns how much memory a body may need at most, by its headers."""
    length = request.headers.get("content-length", "")
    if not (length.isascii() and length.isdigit()):
        return limit if "transfer-encoding" in request.headers else 0
    size = int(length[:18])
    packed = "gzip" in request.headers.get("content-encoding", "").lower()
    packed = packed or "gzip" in request.headers.get("content-type", "").lower()
    return min(limit, 2**20 + max_gzip_ratio * size if packed and size else size)
