"""Metrics of what a worker does, and of what a service has in use."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import update

from harness.service.administered import Administered
from harness.service.open_calls import OpenCall
from harness.service.steps import HARDWARE
from service.base.problems import FAILURES
from service.base.settings import Settings
from service.edge.loop_lag import EVERY_S, LoopLag
from service.edge.metrics import WorkerMetrics
from service.questions.question import Question
from service.store.database import Database
from service.store.jobs import find_or_make_job
from service.store.keys import make_tenant
from service.store.tables import Job, Tenant
from worker.solving import Failed
from worker.tasks import Worker

SAMPLE = tuple[str, ...]


def samples(registry: CollectorRegistry) -> dict[SAMPLE, float]:
    """Every sample by its name and the values of its labels."""
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    }


@pytest.fixture
def worker(database: Database) -> Worker:
    with database.write() as session:
        make_tenant(session, "t")
    return Worker(Settings(max_attempts=2), database, WorkerMetrics(), 1)


def post(worker: Worker, number: int = 1, priority: int = 0) -> str:
    question = Question(
        "frontier", "sha256:g", {"kind": "frontier", "gpus": number, "hardware": {"name": "h"}}
    )
    with worker.database.write() as session:
        job, _ = find_or_make_job(
            session, "t", question, max_queued=100, key_id=None, request_id="r", trace=None
        )
        job.priority = priority
        return job.id


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_waits_by_priority_failures_by_reason_and_time_by_weight(worker: Worker) -> None:
    with worker.database.write() as session:
        session.execute(update(Tenant).values(limits={"weight": 3.0}))
    post(worker, 1, priority=5)
    with worker.database.write() as session:
        session.execute(update(Job).values(created_at=Job.created_at - 40.0))
    post(worker, 2, priority=-1)
    assert [worker.solve_next() for _ in range(2)] == ["failed", "failed"], "no graph is there"
    seen = samples(worker.metrics.registry)
    assert seen["shardwise_failures_total", "invalid"] == 2
    assert seen["shardwise_queue_wait_seconds_count", "high"] == 1
    assert 40.0 <= seen["shardwise_queue_wait_seconds_sum", "high"] < 100.0
    assert seen["shardwise_queue_wait_seconds_count", "low"] == 1
    assert seen["shardwise_queue_wait_seconds_count", "normal"] == 0
    assert seen["shardwise_solving_seconds_total", "heavy"] > 0
    assert seen["shardwise_solving_seconds_total", "normal"] == 0


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
@pytest.mark.parametrize("reason", ["time-limit", "memory-limit", "defect"])
def test_every_reason_is_counted(worker: Worker, reason: str) -> None:
    post(worker)
    claim = worker._claim()
    assert claim is not None
    error = {"type": f"urn:shardwise:problem:{reason}", "title": FAILURES[reason], "detail": "d"}
    assert worker._record(claim, Failed(error)) == "failed"
    seen = samples(worker.metrics.registry)
    assert {r: seen["shardwise_failures_total", r] for r in FAILURES} == {
        r: float(r == reason) for r in FAILURES
    }


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_job_that_killed_its_workers_counts_as_lost(worker: Worker) -> None:
    from service.edge.doorbell import Doorbell
    from worker.sweeper import Sweeper

    post(worker)
    for _ in range(2):
        assert worker._claim() is not None
        with worker.database.write() as session:
            session.execute(update(Job).values(lease_expires_at=1.0))
    sweeper = Sweeper(worker, Doorbell(worker.settings), 1)
    sweeper._doorbell.waiting = lambda: None  # there is no broker, and nothing is to be rung
    sweeper.sweep()
    assert samples(worker.metrics.registry)["shardwise_failures_total", "worker-lost"] == 1


def test_a_loop_that_is_held_is_late() -> None:
    registry = CollectorRegistry()

    async def held() -> None:
        lag = LoopLag(registry)
        lag.start()
        await asyncio.sleep(0)
        time.sleep(EVERY_S + 0.3)
        while samples(registry)[("shardwise_event_loop_lag_seconds_count",)] < 1:
            await asyncio.sleep(0)
        lag.stop()

    asyncio.run(held())
    seen = samples(registry)
    late = seen[("shardwise_event_loop_lag_seconds_sum",)]
    assert late >= 0.3 and seen["shardwise_event_loop_lag_seconds_bucket", "0.25"] == 0


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, redis_url: str) -> Iterator[Administered]:
    rates = dict.fromkeys(("rate_per_s", "anonymous_rate_per_s", "enrol_rate_per_s"), 0.0)
    started = Administered(
        tmp_path_factory.mktemp("in-use"), redis_url=redis_url, queue="in-use", max_watchers=40,
        **rates,
    )  # fmt: skip
    yield started
    started.close()


def test_streams_and_exports_in_use(service: Administered) -> None:
    ask: dict[str, Any] = {"graph": "shipped:vgg16", "hardware": HARDWARE, "gpus": 1}
    job = service("alpha", "POST", "/v1/frontiers", json=ask).headers["Location"]
    registry = service.app.state.shardwise.metrics.registry

    async def scenario() -> dict[SAMPLE, float]:
        paths = {"alpha": f"{job}/events", "beta": "/v1/tenants/beta/export"}
        calls = [
            OpenCall(service.app, service.keys[who], paths[who])
            for who in ("alpha", "alpha", "beta")
        ]
        assert [await asyncio.wait_for(call.status(), 30) for call in calls] == [200] * 3
        seen = samples(registry)
        for call in calls:
            await call.close()
        return seen

    seen = asyncio.run(scenario())
    assert seen["shardwise_open", "streams"] == seen["shardwise_open_of_one", "streams"] == 2
    assert seen["shardwise_open_limit", "streams"] == 40
    assert seen["shardwise_open", "archives"] == 1
    assert ("shardwise_open_limit", "uploads") not in seen, "only each tenant's own"
    assert seen["shardwise_calls_running", "reads"] == seen["shardwise_calls_waiting", "reads"] == 0
    assert seen[("shardwise_bodies_ratio",)] == 0
    assert samples(registry)["shardwise_open", "streams"] == 0


def test_readyz_says_how_many_workers_answer(service: Administered) -> None:
    from service.store.records import worker_seen
    from service.store.tables import WorkerRow

    with service.database.write() as session:
        for name in ("w1", "w2"):
            worker_seen(session, name, "host", 1, 2)
        session.execute(
            update(WorkerRow).where(WorkerRow.id == "w2").values(seen_at=WorkerRow.seen_at - 20.0)
        )
    checks = service.client.get("/readyz").json()["checks"]
    assert checks["workers"] == 2 and checks["workers_answered"] == 1
    assert checks["answered_within_s"] == 10.0
