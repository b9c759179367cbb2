"""A rate limit that holds over all processes of a service, at almost no cost per request.

Each process leases tokens of a key's shared bucket in small batches
(service/edge/token_server.py) and spends them without asking. Tokens are taken from the bucket when
they are leased, so that all processes together exceed the limit by at most one batch each. While
the server is away, each process counts by its own buckets: the limit then holds in each process
alone.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from math import ceil
from time import monotonic

from prometheus_client import Counter

from service.edge.rate import MAX_BUCKETS, Buckets, allowance
from service.edge.token_server import Away, TokenServer

BATCH_S = 0.05
"""A lease is at most the tokens of this time, and at least one token."""
LEASE_S = 10.0
"""Unused tokens of a lease expire after this time."""
RECHECK_S = 1.0
"""A refusal is trusted for at most this time, since the key's rate may have been raised."""


@dataclass(slots=True)
class Lease:
    """Tokens of a key that this process may spend, or the time until which there are none."""

    tokens: int = 0
    spent: int = 0
    until: float = 0.0
    free_at: float = 0.0
    ask_at: float = 0.0
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)

    def spend(self) -> bool:
        """Spends a token. Returns False if no valid one is left."""
        if self.tokens < 1 or self.until < monotonic():
            return False
        self.tokens -= 1
        self.spent += 1
        return True

    def wanted(self, rate_per_s: float) -> int:
        """Returns the size of the next lease: twice what this one spent, at most a batch."""
        return min(max(1, 2 * self.spent), max(1, ceil(rate_per_s * BATCH_S)))


class RateLimit:
    """At most `rate_per_s` of each key, `burst` at once; a rate of 0 means no limit.

    Belongs to one event loop. `name` is part of the shared buckets' names and the metrics' label.
    """

    def __init__(
        self, name: str, rate_per_s: float, burst: int, server: TokenServer | None, alone: Counter
    ) -> None:
        self.name = name
        self._rate = rate_per_s
        self._burst = float(burst)
        self._server = server
        self._alone = alone
        self._own = Buckets(rate_per_s, burst)
        self._leases: OrderedDict[str, Lease] = OrderedDict()

    def take_leased(self, key: str, own_rate_per_s: float | None = None) -> bool:
        """Takes a token without waiting. Returns False if that needs the server, or there is none.

        The caller then asks `take`.
        """
        if self._rate_of(own_rate_per_s) <= 0:
            return True
        lease = self._leases.get(key)
        if lease is not None and lease.spend():
            return True
        if self._server is None:
            return self._own.take(key, own_rate_per_s) <= 0
        return not self._server.ready() and self._take_alone(key, own_rate_per_s) <= 0

    async def take(self, key: str, own_rate_per_s: float | None = None) -> float:
        """Takes a token. Returns 0, or the seconds until there is one."""
        if self._rate_of(own_rate_per_s) <= 0:
            return 0.0
        if self._server is None:
            return self._own.take(key, own_rate_per_s)
        lease = self._lease(key)
        if lease.spend():
            return 0.0
        if not self._server.ready():
            return self._take_alone(key, own_rate_per_s)
        async with lease.asking:
            # The request before this one in the queue may have fetched enough tokens.
            if lease.spend():
                return 0.0
            now = monotonic()
            if now < lease.ask_at:
                return max(lease.free_at - now, 0.001)
            try:
                return await self._ask(self._server, key, lease, own_rate_per_s)
            except Away:
                return self._take_alone(key, own_rate_per_s)

    def give_back(self, key: str) -> None:
        """Returns a token that was taken just now."""
        lease = self._leases.get(key)
        if lease is not None and lease.until >= monotonic():
            lease.tokens += 1
        else:
            self._own.give_back(key)

    async def _ask(
        self, server: TokenServer, key: str, lease: Lease, own_rate_per_s: float | None
    ) -> float:
        rate, burst = allowance(self._rate, self._burst, own_rate_per_s)
        granted, wait_s = await server.grant(f"{self.name}:{key}", rate, burst, lease.wanted(rate))
        now = monotonic()
        if granted < 1:
            lease.free_at, lease.ask_at = now + wait_s, now + min(wait_s, RECHECK_S)
            return wait_s
        lease.tokens, lease.spent, lease.until = granted - 1, 1, now + LEASE_S
        return 0.0

    def _take_alone(self, key: str, own_rate_per_s: float | None) -> float:
        self._alone.inc()
        return self._own.take(key, own_rate_per_s)

    def _lease(self, key: str) -> Lease:
        lease = self._leases.get(key)
        if lease is None:
            # The tokens of an evicted lease were already taken from the bucket: the limit holds.
            if len(self._leases) >= MAX_BUCKETS:
                self._leases.popitem(last=False)
            lease = self._leases[key] = Lease()
        self._leases.move_to_end(key)
        return lease

    def _rate_of(self, own_rate_per_s: float | None) -> float:
        return self._rate if own_rate_per_s is None else own_rate_per_s
