"""Threads shared fairly between tenants."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from math import inf
from time import thread_time
from typing import Any, ParamSpec, TypeVar

from service.base.fair_slots import FairSlots, Gone
from service.base.shares import Shares, share_of
from service.base.time_shares import TimeShares

P = ParamSpec("P")
T = TypeVar("T")


KEPT = 1
"""Threads of each pool for operators alone."""


class FairPool:
    """One thread for each slot, started when it is first needed."""

    def __init__(
        self,
        name: str,
        slots: int,
        share: int = 0,
        most: int = 256,
        times: TimeShares | None = None,
    ) -> None:
        """`share`: slots of one tenant; 0: half of all. `most`: calls of one tenant that may wait.

        Operators have `KEPT` slots more. `times` is charged with what calls take, and says which
        tenants have to pause.
        """
        self._times = times or TimeShares(share=1.0, burst_s=inf)
        shares = Shares(slots, share_of(slots, share), KEPT)
        self.slots = FairSlots(shares, most, self._times.pause_s)
        self._threads = ThreadPoolExecutor(slots + KEPT, thread_name_prefix=name)

    async def run(self, tenant: str, act: Callable[P, T], *args: P.args, **keywords: P.kwargs) -> T:
        """Returns the result of `act`, called in a thread when it is the tenant's turn."""
        return await self.run_unless(None, tenant, act, *args, **keywords)

    async def run_unless(
        self,
        gone: Gone | None,
        tenant: str,
        act: Callable[P, T],
        *args: P.args,
        **keywords: P.kwargs,
    ) -> T:
        """Like `run`, but does not run a request whose client goes away while it waits.

        Raises `Problem` then, and when too many of the tenant's requests wait.
        """
        self._times.note(tenant)
        await self.slots.take(tenant, gone)
        return await self.run_taken(tenant, act, *args, **keywords)

    async def run_taken(
        self, tenant: str, act: Callable[P, T], *args: P.args, **keywords: P.kwargs
    ) -> T:
        """Like `run`, in a slot that the tenant has taken; gives the slot back."""
        return await asyncio.wrap_future(self._submit(tenant, act, *args, **keywords))

    def _submit(
        self, tenant: str, act: Callable[P, T], *args: P.args, **keywords: P.kwargs
    ) -> Future[T]:
        loop = asyncio.get_running_loop()
        context = contextvars.copy_context()
        took_s = 0.0

        def call() -> T:
            nonlocal took_s
            began = thread_time()
            try:
                return context.run(act, *args, **keywords)
            finally:
                took_s = thread_time() - began

        def ended(_: Future[Any]) -> None:
            # The end of the thread frees the slot, not the end of the waiting call.
            with suppress(RuntimeError):  # the loop is closed: the process ends
                loop.call_soon_threadsafe(self._ended, tenant, took_s)

        try:
            future = self._threads.submit(call)
        except BaseException:
            self.slots.give(tenant)
            raise
        future.add_done_callback(ended)
        return future

    def _ended(self, tenant: str, took_s: float) -> None:
        self._times.charge(tenant, took_s)
        self.slots.give(tenant)

    def close(self) -> None:
        """Takes no more work; does not wait for what still runs."""
        self._threads.shutdown(wait=False, cancel_futures=True)
