"""Slots shared fairly: each tenant has a bounded share, waiting tenants are served round-robin.

Everything here belongs to the event loop: there is no lock, and a slot is handed on at once.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from service.base.problems import Problem

Gone = Callable[[], Awaitable[None]]
"""Returns an awaitable that ends when the client has stopped waiting for the answer."""


def busy(what: str) -> Problem:
    """Returns the problem of a tenant that has reached a limit on its work."""
    return Problem("rate-limited", f"the tenant has {what}", headers={"Retry-After": "1"})


LONGEST_PAUSE_S = 0.25
"""How often a pausing tenant is checked again: the others may have left in the meantime."""


def _never(tenant: str) -> float:
    return 0.0


class FairSlots:
    """`slots` slots, of which one tenant has at most `share`; `most` of its requests may wait.

    `pause_s` returns for how long a tenant must not start another one.
    """

    def __init__(
        self, slots: int, share: int, most: int, pause_s: Callable[[str], float] = _never
    ) -> None:
        self._free = slots
        self._pause_s = pause_s
        self._pausing: set[str] = set()
        self._share = share
        self._most = most
        self._running: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    def waiting(self, tenant: str) -> int:
        """Returns how many requests of a tenant wait."""
        return len(self._waiting.get(tenant, ()))

    async def take(self, tenant: str, gone: Gone | None = None) -> None:
        """Takes a slot, waiting for the tenant's turn; `give` gives it back.

        Raises `Problem` when too many of the tenant's requests wait, or when its client has gone.
        """
        if self._free > 0 and not self.waiting(tenant) and self._may_start(tenant):
            self._start(tenant)
            return
        if self.waiting(tenant) >= self._most:
            raise busy(f"{self._most} requests waiting")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(turn)
        try:
            await (turn if gone is None else unless_gone(turn, gone))
        except BaseException:
            self._leave(tenant, turn)
            raise

    def give(self, tenant: str) -> None:
        """Gives a slot back; the next tenant that waits gets it."""
        self._running[tenant] -= 1
        if self._running[tenant] <= 0:
            del self._running[tenant]
        self._free += 1
        self._hand_on()

    def _may_start(self, tenant: str) -> bool:
        """Returns whether a tenant may have one more slot.

        If only a pause forbids it, free slots are handed on when the pause ends.
        """
        if self._running[tenant] >= self._share:
            return False
        if (pause_s := self._pause_s(tenant)) <= 0:
            return True
        if tenant not in self._pausing:
            self._pausing.add(tenant)
            loop = asyncio.get_running_loop()
            loop.call_later(min(pause_s, LONGEST_PAUSE_S), self._resume, tenant)
        return False

    def _resume(self, tenant: str) -> None:
        self._pausing.discard(tenant)
        self._hand_on()

    def _start(self, tenant: str) -> None:
        self._free -= 1
        self._running[tenant] += 1

    def _leave(self, tenant: str, turn: asyncio.Future[None]) -> None:
        """Leaves the queue; passes on a turn that came at the same moment."""
        if turn.done() and not turn.cancelled():
            self.give(tenant)
            return
        queue = self._waiting.get(tenant)
        if queue is not None:
            with suppress(ValueError):
                queue.remove(turn)
            if not queue:
                del self._waiting[tenant]

    def _hand_on(self) -> None:
        for tenant in list(self._waiting):
            if self._free <= 0:
                return
            while tenant in self._waiting and self._may_start(tenant):
                queue = self._waiting[tenant]
                turn = queue.popleft()
                if queue:
                    self._waiting.move_to_end(tenant)
                else:
                    del self._waiting[tenant]
                if not turn.done():
                    self._start(tenant)
                    turn.set_result(None)
                    break


async def unless_gone(future: asyncio.Future[Any], gone: Gone) -> None:
    """Waits for a future. Raises `Problem` if the client goes away first."""
    watcher = asyncio.ensure_future(gone())
    try:
        await asyncio.wait({future, watcher}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        watcher.cancel()
        # It must have released the connection before anything else reads from it.
        await asyncio.wait({watcher})
    if not future.done():
        raise Problem("bad-request", "the client went away")


class Places:
    """At most `most` things of a tenant at once; no waiting."""

    def __init__(self, most: int, what: str) -> None:
        self._most = most
        self._what = what
        self._taken: Counter[str] = Counter()

    @contextmanager
    def one(self, tenant: str) -> Iterator[None]:
        """Holds a place while the block runs. Raises `Problem` if the tenant has no place left."""
        if self._taken[tenant] >= self._most:
            raise busy(f"{self._most} {self._what}")
        self._taken[tenant] += 1
        try:
            yield
        finally:
            self._taken[tenant] -= 1
            if self._taken[tenant] <= 0:
                del self._taken[tenant]
