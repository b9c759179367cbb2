"""The processor time that each tenant's calls take: which tenants have to pause for others.

One interpreter computes for all calls of a process, however many threads it has. A tenant whose
calls are expensive, or never stop, would therefore delay everyone, whatever its share of the
threads. So tenants are charged with the time that their calls took, in threads and on the event
loop (`charged`), where each refusal costs half a millisecond too:

    debt_s += seconds of its calls - share · seconds that passed         (never below 0)

and a tenant that owes more than `burst_s` starts no further call until it owes less: a call waits
before it is looked at, for a moment, and then for a thread. No tenant pauses while it is the only
one that asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from time import monotonic, thread_time
from types import coroutine
from typing import Any

SHARE = 0.25
"""Seconds of processor time for each second that passes."""

BURST_S = 0.25
"""Debt that a tenant may have without a pause: a few dozen ordinary calls at once."""

ABOUT_S = 2.0
"""A tenant that has asked within this time counts as present."""

LONGEST_TURN_S = 2.0
"""How long a call waits before it is looked at: long enough that a caller at a limit who tries
again at once costs little, short enough for heartbeats and clients' timeouts."""

LONGEST_PAUSE_S = 0.25
"""How often a pausing tenant is checked again: the others may have left in the meantime."""

MOST = 10_000
"""Tenants that are remembered; those beyond start without a debt."""


class TimeShares:
    """Tenants' debts of processor time. Everything here belongs to the event loop."""

    def __init__(
        self,
        share: float = SHARE,
        burst_s: float = BURST_S,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._share = share
        self._burst_s = burst_s
        self._clock = clock
        self._debts: dict[str, tuple[float, float]] = {}
        self._last: tuple[str, float] | None = None
        self._last_other: tuple[str, float] | None = None

    def note(self, tenant: str) -> None:
        """Notes that a tenant asks."""
        if self._last is not None and self._last[0] != tenant:
            self._last_other = self._last
        self._last = (tenant, self._clock())

    def charge(self, tenant: str, seconds: float) -> None:
        """Adds what a call of the tenant took."""
        debt_s = self._debt_s(tenant)
        if len(self._debts) >= MOST:
            self._debts = {name: debt for name, debt in self._debts.items() if self._debt_s(name)}
        if len(self._debts) < MOST or tenant in self._debts:
            self._debts[tenant] = (debt_s + seconds, self._clock())

    def pause_s(self, tenant: str) -> float:
        """Returns for how long the tenant has to pause; 0 if it may go on, or is alone."""
        debt_s = self._debt_s(tenant) - self._burst_s
        return debt_s / self._share if debt_s > 0 and self._others_ask(tenant) else 0.0

    async def turn(self, tenant: str) -> None:
        """Notes that a tenant asks, and waits while it has to pause, `LONGEST_TURN_S` at most."""
        self.note(tenant)
        until = self._clock() + LONGEST_TURN_S
        while (pause_s := min(self.pause_s(tenant), until - self._clock())) > 0:
            await asyncio.sleep(min(pause_s, LONGEST_PAUSE_S))

    def _debt_s(self, tenant: str) -> float:
        debt_s, at = self._debts.get(tenant, (0.0, 0.0))
        return max(debt_s - self._share * (self._clock() - at), 0.0)

    def _others_ask(self, tenant: str) -> bool:
        asked = (self._last, self._last_other)
        latest = max((at for name, at in filter(None, asked) if name != tenant), default=None)
        return latest is not None and self._clock() - latest <= ABOUT_S


@coroutine
def charged(work: Awaitable[None], charge: Callable[[float], None]) -> Generator[Any, Any, None]:
    """Awaits `work`; calls `charge` with the processor time in seconds of each of its steps.

    Tasks that it starts, and threads, are not in it.
    """
    steps = work.__await__()
    resume: Callable[[], Any] = partial(steps.send, None)
    while True:
        began = thread_time()
        try:
            wanted = resume()
        except StopIteration:
            return
        finally:
            charge(thread_time() - began)
        try:
            value = yield wanted
        except BaseException as error:
            resume = partial(steps.throw, error)
        else:
            resume = partial(steps.send, value)
