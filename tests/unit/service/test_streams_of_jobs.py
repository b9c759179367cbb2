"""Many event streams of one job: they wake without a lock, and share what is read of a curve."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import anyio
import msgspec
import pytest

pytest.importorskip("fastapi")

from service.base.problems import Problem
from service.edge.new_points import NewPoints, PointsOfJobs
from service.edge.watch import Watch


class Reads:
    """A pool that reads the next points in no time, or is full."""

    def __init__(self) -> None:
        self.calls = 0
        self.full = False

    async def run(self, lane: str, act: Any, job: Any, left: Any) -> Any:
        await asyncio.sleep(0)
        if self.full:
            raise Problem("rate-limited", "256 requests waiting")
        self.calls += 1
        known = round(job.progress * 4)
        before = 0 if left is None else 4 - len(left)
        points = [msgspec.Raw(b"%d" % n) for n in range(before, known)]
        return {n: str(n) for n in range(known, 4)}, points


def curve_job(progress: float) -> Any:
    return SimpleNamespace(id="j", kind="curve", state="running", stage="", progress=progress)


def test_a_change_is_read_once_for_all_streams_of_a_job() -> None:
    async def scenario() -> None:
        reads: Any = Reads()
        points = PointsOfJobs(None, reads)  # type: ignore[arg-type]
        streams = [NewPoints(points) for _ in range(100)]
        for progress, new in ((0.25, [0]), (0.75, [1, 2]), (0.75, []), (1.0, [3])):
            asked = [stream.of("hog", curve_job(progress)) for stream in streams]
            wanted = {"points": [msgspec.Raw(b"%d" % n) for n in new]} if new else {}
            assert await asyncio.gather(*asked) == [wanted] * 100
        assert reads.calls == 3
        late = NewPoints(points)
        everything = {"points": [msgspec.Raw(b"%d" % n) for n in range(4)]}
        assert await late.of("hog", curve_job(1.0)) == everything
        assert reads.calls == 3
        del streams, late, asked
        assert not points._of, "kept as long as there are streams"

    asyncio.run(scenario())


def test_points_that_cannot_be_read_come_later() -> None:
    async def scenario() -> None:
        reads: Any = Reads()
        stream = NewPoints(PointsOfJobs(None, reads))  # type: ignore[arg-type]
        reads.full = True
        assert await stream.of("hog", curve_job(0.5)) == {}
        reads.full = False
        assert [bytes(one) for one in (await stream.of("hog", curve_job(0.5)))["points"]] == [
            b"0", b"1"
        ]  # fmt: skip

    asyncio.run(scenario())


def test_watchers_that_go_away_while_they_wake_harm_no_other() -> None:
    """With a condition some gave back a lock that they did not have: 500 streams of one tenant
    ended in 63 defects."""

    async def scenario() -> None:
        rows: Any = None
        watch: Watch[Any] = Watch("jobs", rows, 0.0, Once(), lambda *_: {}, lambda _: True)  # type: ignore[arg-type]
        woken = 0

        async def follow() -> None:
            nonlocal woken
            while True:
                await watch.changed(60.0)
                woken += 1
                await anyio.sleep(0)

        row: Any = SimpleNamespace(id="j")
        for _ in range(5):
            async with watch.on(row), anyio.create_task_group() as tasks:
                for _ in range(200):
                    tasks.start_soon(follow)
                before = woken
                while woken < before + 300:
                    await anyio.sleep(0)
                tasks.cancel_scope.cancel()
        async with watch.on(row):
            await asyncio.wait_for(watch.changed(60.0), 30)

    asyncio.run(scenario())


class Once:
    """A pool that finds no rows."""

    async def run(self, name: str, act: Any, ids: list[str]) -> dict[str, Any]:
        await asyncio.sleep(0)
        return {}
