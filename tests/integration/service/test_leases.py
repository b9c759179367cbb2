"""Single flight and leases on both databases: who may write, how often, and that it is once."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import func, select, update

from service.base.problems import Problem
from service.questions.question import Question
from service.store import leases
from service.store.database import Database
from service.store.jobs import cancel_job, find_or_make_job
from service.store.keys import make_tenant
from service.store.results import result_of
from service.store.schema import migrate
from service.store.tables import Job, Result

LEASE_S = 30.0


@pytest.fixture
def store(database: Database) -> Database:
    migrate(database)
    with database.write() as session:
        make_tenant(session, "t")
    return database


def question(number: int = 1) -> Question:
    hardware = {"name": "h"}
    return Question(
        "frontier", "sha256:g", {"kind": "frontier", "gpus": number, "hardware": hardware}
    )


def make(store: Database, asked: Question | None = None, most: int = 100) -> tuple[str, bool]:
    with store.write() as session:
        job, created = find_or_make_job(
            session, "t", asked or question(), max_queued=most, key_id=None, request_id="r",
            trace=None,
        )  # fmt: skip
        return job.id, created


def in_store(store: Database, act: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
    with store.write() as session:
        return act(session, *arguments, **more)


def state(store: Database, job_id: str) -> Job:
    with store.read() as session:
        return session.get_one(Job, job_id)


def expire(store: Database, job_id: str) -> None:
    with store.write() as session:
        session.execute(update(Job).where(Job.id == job_id).values(lease_expires_at=1.0))


def claim(store: Database, job_id: str, max_attempts: int = 3) -> leases.Claim | None:
    """The claim of the only job that waits."""
    claimed: leases.Claim | None = in_store(store, leases.claim_next, LEASE_S, max_attempts)
    assert claimed is None or claimed.job_id == job_id
    return claimed


def test_fifty_concurrent_questions_get_one_job(store: Database) -> None:
    with ThreadPoolExecutor(16) as pool:
        jobs = list(pool.map(lambda _: make(store), range(50)))
    assert len({job_id for job_id, _ in jobs}) == 1
    assert sum(new for _, new in jobs) == 1


def test_of_twenty_concurrent_claims_one_succeeds(store: Database) -> None:
    job_id, _ = make(store)
    with ThreadPoolExecutor(16) as pool:
        claims = list(pool.map(lambda _: claim(store, job_id), range(20)))
    assert sum(claimed is not None for claimed in claims) == 1
    assert state(store, job_id).attempts == 1


def test_a_worker_that_lost_its_lease_writes_nothing(store: Database) -> None:
    job_id, _ = make(store)
    slow = claim(store, job_id)
    assert slow is not None
    assert claim(store, job_id) is None
    expire(store, job_id)
    quick = claim(store, job_id)
    assert quick is not None
    assert in_store(store, leases.keep_alive, slow, LEASE_S, "s", 0.5) is None
    assert in_store(store, leases.keep_alive, quick, LEASE_S, "s", 0.5) is False
    assert in_store(store, leases.finish, slow, b"slow", '"s"', None) is False
    assert in_store(store, leases.fail, slow, {}) is False
    assert in_store(store, leases.cancelled, slow) is False
    assert in_store(store, leases.give_back, slow, counts=True) is False
    assert state(store, job_id).state == "running"
    assert in_store(store, leases.finish, quick, b"quick", '"q"', None) is True
    assert in_store(store, leases.finish, quick, b"again", '"a"', None) is False
    with store.read() as session:
        stored = result_of(session, "t", quick.content_id)
        assert stored is not None and stored.content == b"quick"
        assert session.scalar(select(func.count()).select_from(Result)) == 1
    guessed = replace(quick, token="0" * 32)
    assert in_store(store, leases.keep_alive, guessed, LEASE_S, "s", 0.5) is None


def test_leases_are_judged_by_the_databases_clock(
    store: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker whose clock is an hour off neither steals nor loses a job."""
    job_id, _ = make(store)
    real = time.time
    for skew in (-3600.0, 3600.0):
        monkeypatch.setattr(time, "time", lambda skew=skew: real() + skew)
        claimed = claim(store, job_id)
        assert (claimed is None) == (skew > 0)
    assert state(store, job_id).attempts == 1


def test_the_third_lost_worker_is_the_last(store: Database) -> None:
    job_id, _ = make(store)
    for _ in range(3):
        assert claim(store, job_id) is not None
        expire(store, job_id)
    assert claim(store, job_id) is None
    assert in_store(store, leases.close_hopeless, 3) == ([], [job_id])
    job = state(store, job_id)
    assert job.state == "failed"
    assert job.error is not None and job.error["type"].endswith("worker-lost")
    other, created = make(store)
    assert created and other != job_id, "asking again gives a new job"


def test_an_attempt_given_back_in_order_does_not_count(store: Database) -> None:
    job_id, _ = make(store)
    for _ in range(5):
        lease = claim(store, job_id)
        assert lease is not None
        assert in_store(store, leases.give_back, lease, counts=False)
    assert state(store, job_id).attempts == 0


def test_the_wait_of_a_job_is_that_for_its_first_start(store: Database) -> None:
    job_id, _ = make(store)
    with store.write() as session:
        session.execute(update(Job).values(created_at=Job.created_at - 100.0, priority=3))
    first = claim(store, job_id)
    assert first is not None
    priority, waited_s = in_store(store, leases.first_wait, first)
    assert priority == 3 and 100.0 <= waited_s < 160.0
    assert in_store(store, leases.give_back, first, counts=False)
    time.sleep(0.01)
    again = claim(store, job_id)
    assert again is not None and again.attempts == 1
    assert in_store(store, leases.first_wait, again) is None


def test_only_one_of_two_sweepers_rings(store: Database) -> None:
    ids = [make(store, question(n))[0] for n in range(3)]
    assert in_store(store, leases.to_ring, 15.0, 10) == [], "they were rung for just now"
    with store.write() as session:
        session.execute(update(Job).values(rung_at=1.0))
    with ThreadPoolExecutor(2) as pool:
        rung = list(pool.map(lambda _: in_store(store, leases.to_ring, 15.0, 10), range(2)))
    assert sorted(rung[0] + rung[1]) == sorted(ids)
    lease = in_store(store, leases.claim_next, LEASE_S, 3)
    with store.write() as session:
        session.execute(update(Job).values(rung_at=1.0))
    expire(store, lease.job_id)
    assert set(in_store(store, leases.to_ring, 15.0, 10)) == set(ids), "expired leases too"


def test_a_cancelled_job_whose_worker_is_gone_ends(store: Database) -> None:
    job_id, _ = make(store)
    assert claim(store, job_id) is not None
    with store.write() as session:
        cancel_job(session, session.get_one(Job, job_id))
    assert state(store, job_id).state == "running"
    expire(store, job_id)
    assert in_store(store, leases.close_hopeless, 3) == ([job_id], [])
    assert state(store, job_id).state == "cancelled"


def test_who_asks_while_a_job_is_being_cancelled_gets_another(store: Database) -> None:
    job_id, _ = make(store)
    lease = claim(store, job_id)
    assert lease is not None
    with store.write() as session:
        cancel_job(session, session.get_one(Job, job_id))
    other, created = make(store)
    assert created and other != job_id
    assert in_store(store, leases.finish, lease, b"late", '"l"', None) is True
    assert state(store, job_id).state == "cancelled"
    with store.read() as session:
        assert result_of(session, "t", lease.content_id) is None
    again = claim(store, other)
    assert again is not None
    assert in_store(store, leases.finish, again, b"new", '"n"', None) is True
    assert state(store, other).state == "done"
    assert make(store) == (other, False)


def test_the_queue_is_bounded(store: Database) -> None:
    make(store, question(1), most=2)
    make(store, question(2), most=2)
    with pytest.raises(Problem) as full:
        make(store, question(3), most=2)
    assert full.value.slug == "queue-full"
    assert make(store, question(2), most=2)[1] is False
