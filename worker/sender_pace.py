"""How long the attempts of tenants held a sender of late, by which senders are shared.

Whose receivers never answer holds each sender for a whole timeout. What counts is the time, not the
answer: a receiver that takes what it is sent at the last moment holds up others as much. Kept by
one worker in memory.
"""

from __future__ import annotations

WEIGHT = 0.2
"""Of the newest attempt in a tenant's mean: one in a few that hangs makes nobody slow."""

SLOW = 0.25
"""From this part of the timeout on, a mean is that of a slow tenant."""

MAX_TENANTS = 10_000


class SenderPace:
    """The mean seconds of each tenant's attempts, the newer ones weighing more."""

    def __init__(self, timeout_s: float) -> None:
        self._slow_s = SLOW * timeout_s
        self._means: dict[str, float] = {}

    def note(self, tenant: str, seconds: float) -> None:
        """Counts an attempt that has ended."""
        mean = self._means.pop(tenant, self._slow_s)
        self._means[tenant] = mean + WEIGHT * (seconds - mean)
        if len(self._means) > MAX_TENANTS:
            del self._means[next(iter(self._means))]

    def is_quick(self, tenant: str) -> bool:
        """Returns whether a tenant may have several senders: once an attempt of it was quick."""
        mean = self._means.get(tenant)
        return mean is not None and mean < self._slow_s

    def is_slow(self, tenant: str) -> bool:
        """Returns whether a tenant's attempts take long.

        One of which nothing is known is not slow.
        """
        return tenant in self._means and not self.is_quick(tenant)
