"""The processor's time that tenants may take among others."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from functools import wraps
from math import inf
from typing import Any

import pytest

pytest.importorskip("fastapi")

from service.base.fair_pool import FairPool
from service.base.time_shares import (
    ABOUT_S,
    LONGEST_PAUSE_S,
    LONGEST_TURN_S,
    MOST,
    TimeShares,
    charged,
)


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def times(clock: Clock) -> TimeShares:
    return TimeShares(share=0.25, burst_s=0.5, clock=clock)


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*arguments: Any, **keywords: Any) -> None:
        asyncio.run(test(*arguments, **keywords))

    return run


def test_among_others_a_tenant_pauses_until_its_debt_is_paid(
    times: TimeShares, clock: Clock
) -> None:
    times.note("quiet")
    times.note("greedy")
    times.charge("greedy", 0.5)
    assert times.pause_s("greedy") == 0
    times.charge("greedy", 0.25)
    assert times.pause_s("greedy") == pytest.approx(1.0)
    assert times.pause_s("quiet") == 0
    clock.now_s += 0.75
    assert times.pause_s("greedy") == pytest.approx(0.25)
    clock.now_s += 0.25
    assert times.pause_s("greedy") == 0


def test_a_tenant_that_is_alone_never_pauses(times: TimeShares, clock: Clock) -> None:
    times.note("greedy")
    times.charge("greedy", 100.0)
    assert times.pause_s("greedy") == 0
    times.note("quiet")
    times.note("greedy")
    times.note("greedy")
    assert times.pause_s("greedy") > 0, "what it took while it was alone counts too"
    clock.now_s += ABOUT_S + 0.1
    times.note("greedy")
    assert times.pause_s("greedy") == 0, "the other has gone"


def test_debts_of_many_tenants_take_bounded_memory(times: TimeShares, clock: Clock) -> None:
    for number in range(MOST):
        times.charge(f"t{number}", 0.1)
    times.charge("late", 100.0)
    assert times._debt_s("late") == 0
    clock.now_s += 1.0
    times.charge("late", 100.0)
    assert times._debt_s("late") == pytest.approx(100.0)
    assert len(times._debts) == 1


def work(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


@on_a_loop
async def test_a_pool_charges_for_the_processor_and_lets_others_go_first(clock: Clock) -> None:
    times = TimeShares(share=0.1, burst_s=0.05, clock=clock)
    pool = FairPool("test", 4, times=times)
    await pool.run("greedy", work, 0.2)
    await pool.run("quiet", time.sleep, 0.2)
    waits = asyncio.create_task(pool.run("greedy", lambda: "at last"))
    quiet = asyncio.wait_for(pool.run("quiet", lambda: "at once"), 60)
    assert await quiet == "at once", "waiting costs nothing"
    clock.now_s += 1.0
    await asyncio.sleep(2 * LONGEST_PAUSE_S)
    assert not waits.done()
    clock.now_s += 60.0
    times.note("quiet")
    assert await asyncio.wait_for(waits, 60) == "at last"
    pool.close()


@on_a_loop
async def test_a_pool_without_shares_pauses_no_tenant() -> None:
    pool = FairPool("test", 4)
    assert pool._times.pause_s("anybody") == 0
    assert pool._times._burst_s == inf
    pool.close()


@on_a_loop
async def test_who_pauses_goes_on_soon_after_the_others_have_left() -> None:
    times = TimeShares(share=0.001, burst_s=0.0)
    pool = FairPool("test", 2, times=times)
    times.note("quiet")
    times.charge("greedy", 1.0)
    await asyncio.wait_for(pool.run("greedy", lambda: None), ABOUT_S + 30)
    pool.close()


@on_a_loop
async def test_a_call_of_who_owes_waits_a_moment_among_others_and_not_alone() -> None:
    times = TimeShares(share=1e-6, burst_s=0.0)
    times.charge("greedy", 1.0)
    began = time.monotonic()
    await times.turn("greedy")
    assert time.monotonic() - began < LONGEST_TURN_S / 2, "nobody else asks"
    await times.turn("quiet")
    assert time.monotonic() - began < LONGEST_TURN_S / 2
    began = time.monotonic()
    await times.turn("greedy")
    assert LONGEST_TURN_S * 0.9 < time.monotonic() - began < LONGEST_TURN_S + 30


@on_a_loop
async def test_the_time_of_each_step_is_charged_and_waiting_is_not() -> None:
    seen: list[float] = []

    async def steps() -> None:
        for _ in range(3):
            work(0.02)
            await asyncio.sleep(0.05)

    await charged(steps(), seen.append)
    assert len(seen) == 4
    assert 0.06 <= sum(seen) < 0.12


@on_a_loop
async def test_what_is_charged_ends_as_it_would_alone() -> None:
    seen: list[float] = []
    ended = asyncio.Event()

    async def fails() -> None:
        await asyncio.sleep(0)
        raise LookupError("as it is")

    async def waits() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    async def recovers() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.sleep(60), 0.01)

    with pytest.raises(LookupError, match="as it is"):
        await charged(fails(), seen.append)
    await charged(recovers(), seen.append)
    task = asyncio.ensure_future(charged(waits(), seen.append))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()
    assert len(seen) >= 5


@pytest.mark.skipif(sys.platform != "linux", reason="sessions are scheduled by Linux alone")
def test_a_session_that_gives_way_gives_way_to_other_sessions() -> None:
    said = subprocess.run(
        [sys.executable, "-c", "from service.base.background import give_way; import os, pathlib\n"
         "give_way(7); group = pathlib.Path('/proc/self/autogroup')\n"
         "print(os.nice(0), group.read_text().split()[-1] if group.exists() else 7)"],
        capture_output=True, text=True, check=True, start_new_session=True,
    )  # fmt: skip
    assert said.stdout.split() == [str(min(os.nice(0) + 7, 19)), "7"]
