"""Slots shared fairly: each tenant has a bounded share, waiting tenants are served round-robin.

A tenant here is a lane of `Shares` (service/base/shares.py): operators have one of their own.
Everything here belongs to the event loop: there is no lock, and a slot is handed on at once.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from service.base.problems import Problem
from service.base.shares import OPERATORS, Shares
from service.base.time_shares import LONGEST_PAUSE_S

Gone = Callable[[], Awaitable[None]]
"""Returns an awaitable that ends when the client has stopped waiting for the answer."""


def busy(what: str, slug: str = "rate-limited") -> Problem:
    """Returns the problem of a tenant that has reached a limit on its work."""
    return Problem(slug, f"the tenant has {what}", headers={"Retry-After": "1"})


def _never(tenant: str) -> float:
    return 0.0


class FairSlots:
    """The slots of `shares`, for which at most `most` requests of a tenant wait.

    `pause_s` returns for how long a tenant must not start another one.
    """

    def __init__(self, shares: Shares, most: int, pause_s: Callable[[str], float] = _never) -> None:
        self.shares = shares
        self._pause_s = pause_s
        self._pausing: set[str] = set()
        self._most = most
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @property
    def running(self) -> int:
        """The number of slots in use."""
        return self.shares.taken

    def waiting(self, tenant: str | None = None) -> int:
        """Returns how many requests of a tenant wait, or of all."""
        if tenant is None:
            return sum(map(len, self._waiting.values()))
        return len(self._waiting.get(tenant, ()))

    async def take(self, tenant: str, gone: Gone | None = None) -> None:
        """Takes a slot, waiting for the tenant's turn; `give` gives it back.

        Raises `Problem` when too many of the tenant's requests wait, or when its client has gone.
        """
        if not self.waiting(tenant) and self._may_start(tenant):
            self.shares.take(tenant)
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
        self.shares.give(tenant)
        self._hand_on()

    def _may_start(self, tenant: str) -> bool:
        """Returns whether a tenant may have one more slot.

        If only a pause forbids it, free slots are handed on when the pause ends.
        """
        if self.shares.room(tenant) < 1:
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
            if self.shares.left(tenant) < 1:
                break
            self._serve(tenant)
        self._serve(OPERATORS)

    def _serve(self, tenant: str) -> None:
        """Gives a slot to the next request of a tenant, if one waits and may start."""
        while tenant in self._waiting and self._may_start(tenant):
            queue = self._waiting[tenant]
            turn = queue.popleft()
            if queue:
                self._waiting.move_to_end(tenant)
            else:
                del self._waiting[tenant]
            if not turn.done():
                self.shares.take(tenant)
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
    """Things that a process has open at once, by tenant; no waiting."""

    def __init__(self, shares: Shares, what: str, *, slug: str = "rate-limited") -> None:
        """`what` they are, in the plural; a problem of type `slug` says that there is no room."""
        self.shares = shares
        self._what = what
        self._slug = slug

    def require(self, tenant: str) -> None:
        """Raises `Problem` if the tenant can have no further one now."""
        if self.shares.own_room(tenant) < 1:
            raise busy(f"{self.shares.of(tenant)} {self._what}", self._slug)
        if self.shares.room(tenant) < 1:
            raise Problem(
                self._slug,
                f"{self.shares.taken} {self._what} of all tenants",
                headers={"Retry-After": "5"},
            )

    def take(self, tenant: str) -> None:
        """Takes a place, which `give` gives back. Raises `Problem` if there is none."""
        self.require(tenant)
        self.shares.take(tenant)

    def give(self, tenant: str) -> None:
        """Gives a place back."""
        self.shares.give(tenant)

    @contextmanager
    def one(self, tenant: str) -> Iterator[None]:
        """Holds a place while the block runs. Raises `Problem` if there is none."""
        self.take(tenant)
        try:
            yield
        finally:
            self.give(tenant)
