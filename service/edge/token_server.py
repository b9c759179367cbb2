"""Token buckets that all processes share: stored in the broker's database, filled on its clock.

One script refills a bucket and grants what it holds, so that two processes cannot take the same
token. A bucket expires when it would be full, so nothing is lost.
"""

from __future__ import annotations

import asyncio
import logging
from time import monotonic
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from shardwise.errors import ShardwiseError

log = logging.getLogger(__name__)
DEADLINE_S = 0.05
PAUSE_S = 1.0
"""After the server did not answer, the time before one request tries it again."""
STRIKES = 2
"""Failures in a row until the server counts as away: one may be due to this process."""
TURNS = 16
"""Requests to the server at once, and so connections."""

SCRIPT = """
local clock = redis.call('TIME')
local now = tonumber(clock[1]) + tonumber(clock[2]) / 1000000
local rate, burst, wanted = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local kept = redis.call('HMGET', KEYS[1], 'tokens', 'at')
local tokens, at = tonumber(kept[1]) or burst, tonumber(kept[2]) or now
tokens = math.min(burst, tokens + math.max(0, now - at) * rate)
local granted = math.min(wanted, math.floor(tokens + 0.000001))
tokens = tokens - granted
redis.call('HSET', KEYS[1], 'tokens', string.format('%.9f', tokens),
           'at', string.format('%.6f', now))
redis.call('PEXPIRE', KEYS[1], math.ceil(1000 * (burst - tokens) / rate) + 1000)
return {granted, string.format('%.6f', math.max(0, 1 - tokens) / rate)}
"""


class Away(ShardwiseError):
    """The server does not answer in time, or cannot."""


def client_url(redis_url: str) -> str:
    """Returns the URL with the scheme that the client library uses."""
    scheme, _, rest = redis_url.partition("://")
    if scheme == "unix":
        return redis_url
    return "redis" + ("s" if scheme in ("rediss", "valkeys") else "") + f"://{rest}"


class TokenServer:
    """Grants tokens of shared buckets; belongs to one event loop.

    While it is away, only one request in `PAUSE_S` waits for it.
    """

    def __init__(self, redis_url: str, prefix: str) -> None:
        self._url = client_url(redis_url)
        self._prefix = prefix
        self._client: Redis | None = None
        self._script: Any = None
        self._turns = asyncio.Semaphore(TURNS)
        self._failures = 0
        self._again_at = 0.0

    @property
    def reachable(self) -> bool:
        """Whether it answered recently: fewer than `STRIKES` failures in a row."""
        return self._failures < STRIKES

    def ready(self) -> bool:
        """Returns True if it may be asked: it is reachable, or the pause is over."""
        return self.reachable or monotonic() >= self._again_at

    async def grant(self, key: str, rate: float, burst: float, wanted: int) -> tuple[int, float]:
        """Takes up to `wanted` tokens of a bucket.

        Returns how many were granted, and the seconds until the next if none was. Raises `Away`.
        """
        async with self._turns:
            if not self.ready():
                raise Away("the broker is away")
            self._again_at = monotonic() + PAUSE_S
            try:
                async with asyncio.timeout(DEADLINE_S):
                    granted, wait_s = await self._run(key, rate, burst, wanted)
            except (RedisError, OSError, TimeoutError, ValueError) as error:
                self._failed(error)
                raise Away(str(error)) from None
        self._answered()
        return int(granted), float(wait_s)

    async def _run(self, key: str, rate: float, burst: float, wanted: int) -> Any:
        if self._script is None:
            self._client = Redis.from_url(
                self._url,
                protocol=2,
                retry=Retry(NoBackoff(), 1),
                socket_connect_timeout=DEADLINE_S,
            )
            self._script = self._client.register_script(SCRIPT)
        return await self._script(keys=[f"{self._prefix}:{key}"], args=[rate, burst, wanted])

    def _failed(self, error: BaseException) -> None:
        was_reachable = self.reachable
        self._failures += 1
        if was_reachable and not self.reachable:
            reason = str(error) or type(error).__name__
            log.warning("the broker is away, rates hold in each process alone: %s", reason)

    def _answered(self) -> None:
        if not self.reachable:
            log.info("the broker answers again, rates hold over all processes")
        self._failures = 0

    async def close(self) -> None:
        """Closes the connections."""
        if self._client is not None:
            await self._client.aclose()
