"""Token buckets of one process: bounded in number, and never all forgotten at once."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from time import monotonic

MAX_BUCKETS = 10_000
ALMOST = 1e-9
"""Sums of fractions of a token are not exact."""


@dataclass(slots=True)
class Bucket:
    """Tokens at the time `since`; the bucket fills at `rate_per_s` up to `burst`."""

    tokens: float
    since: float
    rate_per_s: float
    burst: float

    def fill(self, now: float) -> None:
        """Adds the tokens that have accrued since."""
        self.tokens = min(self.burst, self.tokens + (now - self.since) * self.rate_per_s)
        self.since = now


def allowance(rate_per_s: float, burst: float, own_rate_per_s: float | None) -> tuple[float, float]:
    """Returns a key's rate and burst; a key's own rate has a burst of two seconds."""
    if own_rate_per_s is None:
        return rate_per_s, burst
    return own_rate_per_s, max(1.0, 2 * own_rate_per_s)


class Buckets:
    """Buckets of `burst` tokens that fill at `rate_per_s`; a rate of 0 means no limit.

    When there are too many, the least recently used one is evicted, and the new one is as full as
    that was: a caller with many names gets no more than the buckets hold together.
    """

    def __init__(self, rate_per_s: float, burst: int, most: int = MAX_BUCKETS) -> None:
        self._rate = rate_per_s
        self._burst = float(burst)
        self._most = most
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, key: str, own_rate_per_s: float | None = None) -> float:
        """Takes a token. Returns 0, or the seconds until there is one."""
        rate, burst = allowance(self._rate, self._burst, own_rate_per_s)
        if rate <= 0:
            return 0.0
        now = monotonic()
        bucket = self._buckets.get(key)
        if bucket is None or bucket.rate_per_s != rate:
            bucket = self._new(key, rate, burst, now)
        self._buckets.move_to_end(key)
        bucket.fill(now)
        if bucket.tokens < 1.0 - ALMOST:
            return (1.0 - bucket.tokens) / rate
        bucket.tokens -= 1.0
        return 0.0

    def give_back(self, key: str) -> None:
        """Returns a token that was taken."""
        bucket = self._buckets.get(key)
        if bucket is not None:
            bucket.tokens = min(bucket.burst, bucket.tokens + 1.0)

    def _new(self, key: str, rate: float, burst: float, now: float) -> Bucket:
        share = 1.0
        if key not in self._buckets and len(self._buckets) >= self._most:
            _, oldest = self._buckets.popitem(last=False)
            oldest.fill(now)
            share = oldest.tokens / oldest.burst
        bucket = self._buckets[key] = Bucket(share * burst, now, rate, burst)
        return bucket
