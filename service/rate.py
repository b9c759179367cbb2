"""Rate limits: one token bucket for each key, in each process."""

from __future__ import annotations

from time import monotonic

MAX_BUCKETS = 10_000


class Buckets:
    """Buckets of `burst` tokens that fill at `rate_per_s`; a rate of 0 never runs dry."""

    def __init__(self, rate_per_s: float, burst: int) -> None:
        self._rate = rate_per_s
        self._burst = float(burst)
        self._buckets: dict[str, tuple[float, float]] = {}

    def take(self, key: str, own_rate_per_s: float | None = None) -> float:
        """Take a token; 0, or the seconds until there is one.

        A key with a rate of its own has a burst of two seconds of it.
        """
        rate = self._rate if own_rate_per_s is None else own_rate_per_s
        if rate <= 0:
            return 0.0
        burst = self._burst if own_rate_per_s is None else max(1.0, 2 * rate)
        now = monotonic()
        tokens, since = self._buckets.get(key, (burst, now))
        tokens = min(burst, tokens + (now - since) * rate)
        if len(self._buckets) > MAX_BUCKETS:
            self._buckets.clear()
        if tokens < 1.0 - 1e-9:  # sums of fractions of a token are not exact
            self._buckets[key] = (tokens, now)
            return (1.0 - tokens) / rate
        self._buckets[key] = (tokens - 1.0, now)
        return 0.0
