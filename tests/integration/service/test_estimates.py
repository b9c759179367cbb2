"""Estimates by the tenant's own past jobs, and jobs that outrun theirs in the short slot."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from threading import Thread
from time import monotonic
from typing import Any

import pytest
from sqlalchemy import update

from harness.service.service_harness import wait_until
from harness.service.steps import mlp
from service.base.problems import failure
from service.base.settings import Settings
from service.edge.metrics import WorkerMetrics
from service.questions.cost_model import seconds_of
from service.questions.question import Limits, Question, compare_question, curve_question
from service.questions.upload import upload_of
from service.store import leases
from service.store.database import Database, now
from service.store.estimates import Estimate, estimate_of
from service.store.graphs import add_graph
from service.store.jobs import cancel_job, find_or_make_job
from service.store.keys import make_tenant
from service.store.queue_rows import queue_rows
from service.store.queue_view import left_of
from service.store.tables import Job
from shardwise.capture import shipped_graph
from shardwise.documents import CompareRequest, CurveRequest
from shardwise.graph import read_graph
from shardwise.hardware import load_hardware
from worker.giving_way import HeldJob
from worker.tasks import Worker

LIMITS = Limits(1024, 1024)
LONGEST_S = 600.0
UPLOAD = upload_of(mlp())


@pytest.fixture
def store(database: Database) -> Database:
    with database.write() as session:
        for tenant in ("a", "b"):
            make_tenant(session, tenant)
            add_graph(session, tenant, UPLOAD.id, UPLOAD.canonical, UPLOAD.summary)
    return database


def comparison(gpus: int, **options: Any) -> Question:
    asked = CompareRequest("g", "dgx-h100", gpus, options=options)
    return compare_question(asked, UPLOAD.id, load_hardware("dgx-h100"), LIMITS)


def estimated_s(store: Database, tenant: str, question: Question) -> float:
    with store.read() as session:
        return estimate_of(session, tenant, question, UPLOAD.summary, LONGEST_S).cost_s


def ended(
    store: Database, tenant: str, question: Question, took_s: float, error: Any = None
) -> None:
    """A past job of this question, which took so long."""
    with store.write() as session:
        estimate = estimate_of(session, tenant, question, UPLOAD.summary, LONGEST_S)
        find_or_make_job(
            session, tenant, question, max_queued=1000, key_id=None, request_id="r", trace=None,
            estimate=lambda: estimate,
        )  # fmt: skip
        claim = leases.claim_next(session, 30.0, 3)
        assert claim is not None
        if error is None:
            assert leases.finish(session, claim, b"{}", '"e"', None)
        else:
            assert leases.fail(session, claim, error)
        leases.settle(session, claim, took_s, claim.cost_s)


def test_another_tenants_jobs_leave_an_estimate_as_it_is(store: Database) -> None:
    before_s = estimated_s(store, "a", comparison(8))
    for gpus in (1, 2, 4, 8):
        ended(store, "b", comparison(gpus), 0.1)
    assert estimated_s(store, "a", comparison(8)) == before_s
    assert estimated_s(store, "b", comparison(8)) < 0.3 * before_s


def test_past_jobs_count_for_those_of_like_size(store: Database) -> None:
    """Exact comparisons take long, and are not told from others by the start value."""
    usual_s = estimated_s(store, "a", comparison(8))
    for gpus in (1, 2, 4, 8, 16):
        ended(store, "a", comparison(gpus), estimated_s(store, "a", comparison(gpus)))
    ended(store, "a", comparison(4, epsilon=0.0, method="elimination"), 20 * usual_s)
    like_s = estimated_s(store, "a", comparison(8, epsilon=0.0, method="elimination"))
    assert like_s > 8 * usual_s
    assert estimated_s(store, "a", comparison(8)) == pytest.approx(usual_s, rel=0.2)


def test_a_question_that_failed_is_estimated_by_its_failure(store: Database) -> None:
    start_s = seconds_of(comparison(8).document, UPLOAD.summary)
    ended(store, "a", comparison(8), 500.0, failure("memory-limit", "too much"))
    assert estimated_s(store, "a", comparison(8)) == 500.0
    assert estimated_s(store, "a", comparison(16)) < 10 * start_s, "says nothing of another"
    ended(store, "a", comparison(4), 600.0, failure("time-limit", "too long"))
    assert estimated_s(store, "a", comparison(8)) == 500.0
    assert estimated_s(store, "a", comparison(16)) > 50 * start_s, "it would take as long"
    ended(store, "a", comparison(8), 2.0)
    assert estimated_s(store, "a", comparison(8)) != 500.0


@pytest.mark.parametrize("slug", ["time-limit", "worker-lost"])
def test_a_job_that_was_stopped_early_shortens_no_estimate(store: Database, slug: str) -> None:
    start_s = estimated_s(store, "a", comparison(8))
    ended(store, "a", comparison(8), 0.2, failure(slug, "stopped"))
    assert estimated_s(store, "a", comparison(8)) == pytest.approx(start_s)
    assert estimated_s(store, "a", comparison(16)) > start_s


def asked(store: Database, tenant: str, question: Question, cost_s: float) -> str:
    with store.write() as session:
        job, created = find_or_make_job(
            session, tenant, question, max_queued=100, key_id=None, request_id="r", trace=None,
            estimate=lambda: Estimate(cost_s, cost_s),
        )  # fmt: skip
        assert created
        return job.id


def seen(store: Database, job_id: str) -> Job:
    with store.read() as session:
        return session.get_one(Job, job_id)


def ratios(worker: Worker, kind: str) -> float:
    """Times over estimates, summed over the jobs of a kind that have told."""
    name = "shardwise_solve_estimate_ratio_sum"
    return worker.metrics.registry.get_sample_value(name, {"kind": kind}) or 0.0


def test_the_end_of_a_running_curve_moves_with_its_counts(store: Database) -> None:
    """64 counts that take 10 s each, estimated at 100 s in all."""
    asked_for = CurveRequest("g", "dgx-h100", 64)
    curve = curve_question(asked_for, UPLOAD.id, load_hardware("dgx-h100"), LIMITS)
    job_id = asked(store, "a", curve, 100.0)
    with store.write() as session:
        claim = leases.claim_next(session, 30.0, 3)
    assert claim is not None
    ends_s = []
    for count in range(4):
        with store.write() as session:
            earlier = now() - 10.0 * count
            session.execute(update(Job).where(Job.id == job_id).values(claimed_at=earlier))
            assert leases.keep_alive(session, claim, 30.0, "", count / 64) is False
            # Ten seconds later without another count.
            for moment in (Job.claimed_at, Job.progress_at):
                session.execute(update(Job).values({moment: moment - 10.0}))
            assert leases.keep_alive(session, claim, 30.0, "", count / 64) is False
        with store.read() as session:
            (running,) = queue_rows(session, 10, 30.0).running
        ends_s.append(running.since_s + left_of(running))
    assert ends_s == pytest.approx([100.0, 225.9, 310.0, 367.4], abs=2.0)


@contextmanager
def working(worker: Worker) -> Iterator[None]:
    """While it takes whatever it may."""

    def work() -> None:
        while not worker.stopping.wait(0.05):
            worker.take_up()

    thread = Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        worker.stopping.set()
        thread.join()
        worker.wait_until_idle(30.0)


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_of_two_jobs_that_outrun_theirs_one_gives_way(store: Database) -> None:
    for gpus in (1, 2, 4):
        asked(store, "a", comparison(gpus), 0.2)
    worker = Worker(Settings(short_job_s=0.5), store, WorkerMetrics(), 2)
    for gave_way in (False, True):
        with store.write() as session:
            claim = leases.claim_next(session, 30.0, 3)
        assert claim is not None
        held = HeldJob(replace(claim, gave_way=gave_way), monotonic() - 60.0, claim.cost_s)
        worker._jobs[claim.token] = held
    first, again = list(worker._jobs.values())
    assert not worker._must_give_way(again.claim), "it gave way before"
    again.claim = replace(again.claim, gave_way=False)
    assert worker._must_give_way(first.claim)
    assert not worker._must_give_way(again.claim), "a slot is being freed already"
    assert worker._longest_s() == 0.5, "for short jobs alone"


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_long_job_leaves_the_slot_for_short_ones_once_and_only_for_one(store: Database) -> None:
    llama = upload_of(read_graph(shipped_graph("llama-8b")))
    with store.write() as session:
        add_graph(session, "a", llama.id, llama.canonical, llama.summary)

    def long(gpus: int, cost_s: float) -> str:
        curve = CurveRequest("g", "dgx-h100", gpus)
        question = curve_question(curve, llama.id, load_hardware("dgx-h100"), LIMITS)
        return asked(store, "a", question, cost_s)

    settings = Settings(short_job_s=0.5, heartbeat_s=0.1, stop_grace_s=0.1)
    worker = Worker(settings, store, WorkerMetrics(), 2)
    rightly, wrongly = long(1000, 900.0), long(999, 0.1)
    with working(worker):
        wait_until(
            lambda: (
                [job.outruns(0.5) for job in list(worker._jobs.values())].count(True) == 1
                and seen(store, wrongly).state == "running"
            ),
            "the second has outrun its estimate",
        )
        assert not seen(store, wrongly).gave_way, "nothing waits for its slot"
        assert ratios(worker, "curve") == 0.0
        short = asked(store, "b", comparison(1), 0.2)
        wait_until(lambda: seen(store, short).state == "done", "the short one has its slot")
        left = seen(store, wrongly)
        assert (left.state, left.gave_way, left.attempts) == ("queued", True, 0)
        assert left.cost_s > 0.5 and left.turn_s == pytest.approx(left.cost_s + left.created_at / 2)
        assert seen(store, rightly).state == "running"
        with store.write() as session:
            cancel_job(session, session.get_one(Job, rightly))
        wait_until(lambda: seen(store, wrongly).state == "running", "it has the slot for long ones")
        assert ratios(worker, "curve") > 3.0, "the estimate that it missed counts once"
        assert [job.claim.gave_way for job in worker._jobs.values()] == [True]
