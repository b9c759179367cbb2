"""Fair slots, pools, places and budgets: who waits for whom, and what is refused."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from functools import wraps
from typing import Any

import pytest

pytest.importorskip("fastapi")

from service.base.byte_budget import SMALL_BYTES, ByteBudget
from service.base.fair_pool import FairPool
from service.base.fair_slots import FairSlots, Places
from service.base.problems import Problem
from service.base.shares import Shares, unshared


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*arguments: Any, **keywords: Any) -> None:
        asyncio.run(test(*arguments, **keywords))

    return run


async def soon() -> None:
    """Let every other task go as far as it can."""
    for _ in range(20):
        await asyncio.sleep(0)


@on_a_loop
async def test_tenants_that_wait_take_turns() -> None:
    slots = FairSlots(Shares(2, 2), 100)
    order: list[str] = []
    await slots.take("a")
    await slots.take("a")

    async def ask(tenant: str) -> None:
        await slots.take(tenant)
        order.append(tenant)

    asked = [asyncio.create_task(ask(tenant)) for tenant in "aaaabbc"]
    await soon()
    assert order == []
    running = ["a", "a"]
    for _ in range(len(asked)):
        slots.give(running.pop(0))
        await soon()
        running.append(order[-1])
    assert order == ["a", "b", "c", "a", "b", "a", "a"]


@on_a_loop
async def test_a_share_is_never_exceeded_and_free_slots_are_for_others() -> None:
    slots = FairSlots(Shares(3, 2), 100)
    await slots.take("a")
    await slots.take("a")
    third = asyncio.create_task(slots.take("a"))
    await soon()
    assert not third.done()
    await asyncio.wait_for(slots.take("b"), 5)
    slots.give("b")
    await soon()
    assert not third.done(), "a slot is free, but not for this tenant"
    slots.give("a")
    await asyncio.wait_for(third, 5)


@on_a_loop
async def test_too_many_that_wait_are_refused_with_a_time() -> None:
    slots = FairSlots(Shares(1, 1), 2)
    await slots.take("a")
    waiting = [asyncio.create_task(slots.take("a")) for _ in range(2)]
    await soon()
    with pytest.raises(Problem) as refused:
        await slots.take("a")
    assert refused.value.status == 429
    assert "Retry-After" in refused.value.headers
    other = asyncio.create_task(slots.take("b"))
    await soon()
    assert slots.waiting("b") == 1, "another tenant may wait"
    for task in (*waiting, other):
        task.cancel()
    await soon()
    assert slots.waiting("a") == slots.waiting("b") == 0


@on_a_loop
async def test_who_has_gone_leaves_the_queue() -> None:
    slots = FairSlots(Shares(1, 1), 10)
    await slots.take("a")
    left = asyncio.Event()

    async def gone() -> None:
        await left.wait()

    first = asyncio.create_task(slots.take("a", gone))
    second = asyncio.create_task(slots.take("a"))
    await soon()
    left.set()
    with pytest.raises(Problem, match="went away"):
        await first
    slots.give("a")
    await asyncio.wait_for(second, 5)
    assert slots.waiting("a") == 0


@on_a_loop
async def test_a_turn_that_comes_as_its_task_is_cancelled_is_passed_on() -> None:
    slots = FairSlots(Shares(1, 1), 10)
    await slots.take("a")
    first, second = (asyncio.create_task(slots.take(tenant)) for tenant in "ab")
    await soon()
    slots.give("a")
    first.cancel()
    await asyncio.wait_for(second, 5)
    slots.give("b")
    await asyncio.wait_for(slots.take("a"), 5)


@on_a_loop
async def test_a_tenants_slow_calls_leave_threads_for_others() -> None:
    pool = FairPool("test", 4)
    release = threading.Event()
    slow = [asyncio.create_task(pool.run("slow", release.wait, 60)) for _ in range(10)]
    await soon()
    try:
        assert await asyncio.wait_for(pool.run("quick", lambda: "answer"), 30) == "answer"
    finally:
        release.set()
    assert await asyncio.gather(*slow) == [True] * 10
    pool.close()


@on_a_loop
async def test_a_cancelled_call_holds_its_slot_until_its_thread_ends() -> None:
    pool = FairPool("test", 1)
    started, release = threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        release.wait(60)

    first = asyncio.create_task(pool.run("a", work))
    await asyncio.to_thread(started.wait, 60)
    first.cancel()
    await soon()
    second = asyncio.create_task(pool.run("b", lambda: 1))
    await soon()
    assert pool.slots.waiting("b") == 1
    release.set()
    assert await asyncio.wait_for(second, 30) == 1
    pool.close()


def test_places_are_counted_by_tenant() -> None:
    places = Places(unshared(2), "uploads")
    with ExitStack() as taken:
        for tenant in "aab":
            taken.enter_context(places.one(tenant))
        with pytest.raises(Problem, match="2 uploads"):
            taken.enter_context(places.one("a"))
    with places.one("a"):
        pass


def test_bytes_are_bounded_for_a_tenant_and_in_all() -> None:
    large = 4 * SMALL_BYTES
    budget = ByteBudget(Shares(3 * large, 2 * large))
    with budget.take("a", large), budget.take("a", large):
        with pytest.raises(Problem), budget.take("a", 1):
            pass
        with ExitStack() as taken:
            for size in (large, SMALL_BYTES):
                taken.enter_context(budget.take("b", size))
            with pytest.raises(Problem):
                taken.enter_context(budget.take("b", large - SMALL_BYTES))
        with budget.take("c", 9 * large):
            pass
    with budget.take("a", 10) as resize:
        resize(large)
        with budget.take("a", large), pytest.raises(Problem):
            resize(large + 1)
    assert not budget.shares.taken
