"""How long recent attempts of tenants occupied a sender, by which senders are shared.

A tenant whose receivers never answer occupies each sender for a whole timeout. Time counts, not the
answer: a receiver that accepts at the last moment delays others as much. Kept by one worker in
memory.
"""

from __future__ import annotations

WEIGHT = 0.2
"""Weight of the newest attempt in a tenant's mean: a rare hang does not make a tenant slow."""

SLOW = 0.25
"""A tenant whose mean reaches this fraction of the timeout is slow."""

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
        """Returns whether a tenant may have several senders: once one of its attempts was quick."""
        mean = self._means.get(tenant)
        return mean is not None and mean < self._slow_s

    def is_slow(self, tenant: str) -> bool:
        """Returns whether a tenant's attempts take long.

        A tenant without attempts is not slow.
        """
        return tenant in self._means and not self.is_quick(tenant)
