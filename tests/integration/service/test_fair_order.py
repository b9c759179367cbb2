"""Whose job is claimed next, on both databases: the service had, priority, length, age."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from sqlalchemy import delete, func, select, update

from harness.service.steps import mlp
from service.base.logs import context
from service.base.settings import Settings
from service.questions.fair_order import Share, Slots, Waiting, places
from service.questions.question import Limits, Question, frontier_question
from service.questions.upload import upload_of
from service.store import leases
from service.store.database import Database
from service.store.estimates import Estimate
from service.store.graphs import add_graph
from service.store.jobs import find_or_make_job
from service.store.keys import make_tenant, set_limit
from service.store.schema import migrate
from service.store.tables import Attained, Job
from shardwise.documents import FrontierRequest
from shardwise.hardware import load_hardware

LEASE_S = 60.0
TENANTS = ("a", "b", "c")


@pytest.fixture
def store(database: Database) -> Database:
    migrate(database)
    with database.write() as session:
        for tenant in TENANTS:
            make_tenant(session, tenant)
    return database


def ask(store: Database, tenant: str, number: int, cost_s: float = 1.0, priority: int = 0) -> str:
    """A queued job of this estimate."""
    question = Question(
        "frontier", "sha256:g", {"kind": "frontier", "gpus": number, "hardware": {"name": "h"}}
    )
    with store.write() as session:
        job, created = find_or_make_job(
            session, tenant, question, max_queued=1000, key_id=None, request_id="r", trace=None,
            priority=priority, estimate=lambda: Estimate(cost_s, cost_s),
        )  # fmt: skip
        assert created
        return job.id


def take(store: Database, **more: Any) -> leases.Claim | None:
    with store.write() as session:
        return leases.claim_next(session, LEASE_S, 3, **more)


def end(store: Database, claim: leases.Claim, took_s: float | None = None) -> None:
    with store.write() as session:
        assert leases.finish(session, claim, b"{}", '"e"', None)
        leases.settle(session, claim, claim.cost_s if took_s is None else took_s, claim.cost_s)


def served(store: Database, count: int, took_s: float | None = None) -> list[str]:
    """The tenants of the next jobs, of which each ends before the next begins."""
    tenants = []
    for _ in range(count):
        claim = take(store)
        assert claim is not None
        tenants.append(claim.tenant_id)
        end(store, claim, took_s)
    return tenants


def order(store: Database, count: int) -> list[str]:
    """The next jobs, all held at once."""
    claims = [take(store) for _ in range(count)]
    return [claim.job_id for claim in claims if claim is not None]


def test_a_tenants_first_question_is_next_behind_another_tenants_thirty(store: Database) -> None:
    for number in range(30):
        ask(store, "a", number)
    assert served(store, 4) == ["a"] * 4
    ask(store, "b", 100)
    assert served(store, 2) == ["b", "a"]
    ask(store, "b", 101)
    ask(store, "c", 102)
    assert sorted(served(store, 2)) == ["b", "c"]


def test_tenants_are_served_by_their_weights(store: Database) -> None:
    with store.write() as session:
        set_limit(session, "b", "weight", 3)
    for number in range(40):
        ask(store, "a", number)
        ask(store, "b", number)
    counts = Counter(served(store, 40))
    assert abs(counts["a"] - 10) <= 1, counts
    assert abs(counts["b"] - 30) <= 1, counts


def test_what_a_job_really_took_counts(store: Database) -> None:
    """Estimates that are too low win nothing: the tenant pays when the job ends."""
    for number in range(20):
        ask(store, "a", number, cost_s=1.0)
        ask(store, "b", number, cost_s=4.0)
    counts: Counter[str] = Counter()
    for _ in range(20):
        claim = take(store)
        assert claim is not None
        counts[claim.tenant_id] += 1
        end(store, claim, took_s=4.0)
    assert abs(counts["a"] - counts["b"]) <= 1, counts


def test_a_pause_earns_nothing(store: Database) -> None:
    for number in range(40):
        ask(store, "a", number)
    ask(store, "b", 1)
    served(store, 21)
    for number in range(10, 30):
        ask(store, "b", number)
    assert abs(Counter(served(store, 10))["b"] - 5) <= 1, "it is not given what it did not ask for"


def test_among_a_tenants_own_jobs_priority_then_length_decide(store: Database) -> None:
    long = ask(store, "a", 1, cost_s=300.0)
    short = ask(store, "a", 2, cost_s=1.0)
    late = ask(store, "a", 3, cost_s=500.0, priority=1)
    last = ask(store, "a", 4, cost_s=0.1, priority=-1)
    assert order(store, 4) == [late, short, long, last]


def test_a_long_job_that_has_waited_goes_before_a_short_one(store: Database) -> None:
    long = ask(store, "a", 1, cost_s=300.0)
    with store.write() as session:
        session.execute(update(Job).values(turn_s=Job.turn_s - 1000.0 / 2))
    short = ask(store, "a", 2, cost_s=1.0)
    assert order(store, 2) == [long, short]


def test_asked_again_with_a_higher_priority_it_has_that(store: Database) -> None:
    ids = [ask(store, "a", number) for number in (1, 2)]
    question = Question(
        "frontier", "sha256:g", {"kind": "frontier", "gpus": 2, "hardware": {"name": "h"}}
    )
    for priority in (5, -5):
        with store.write() as session:
            job, created = find_or_make_job(
                session, "a", question, max_queued=9, key_id=None, request_id="r", trace=None,
                priority=priority,
            )  # fmt: skip
            assert (job.id, job.priority, created) == (ids[1], 5, False)
    assert order(store, 2) == [ids[1], ids[0]]


def test_a_slot_for_short_jobs_takes_no_long_one(store: Database) -> None:
    ask(store, "a", 1, cost_s=100.0)
    short = ask(store, "b", 2, cost_s=2.0)
    with store.read() as session:
        assert leases.any_waiting(session, 1.0) is False
        assert leases.any_waiting(session, 10.0) is True
    claim = take(store, longest_s=10.0)
    assert claim is not None and claim.job_id == short
    assert take(store, longest_s=10.0) is None
    assert take(store) is not None


def test_a_tenants_running_jobs_are_bounded(store: Database) -> None:
    with store.write() as session:
        set_limit(session, "c", "max_running", 3)
    for number in range(5):
        for tenant in ("a", "c"):
            ask(store, tenant, number)
    claims = [take(store, max_running=1) for _ in range(5)]
    assert Counter(claim.tenant_id for claim in claims if claim is not None) == {"a": 1, "c": 3}
    first = next(claim for claim in claims if claim is not None and claim.tenant_id == "a")
    end(store, first)
    again = take(store, max_running=1)
    assert again is not None and again.tenant_id == "a"


def test_no_two_claimers_take_the_same_and_none_is_left(store: Database) -> None:
    ids = {ask(store, TENANTS[n % 3], n) for n in range(60)}

    def some_of_them(_: int) -> list[str]:
        job_ids: list[str] = []
        misses = 0
        while misses < 3:
            claim = take(store)
            misses = misses + 1 if claim is None else 0
            job_ids += [] if claim is None else [claim.job_id]
        return job_ids

    with ThreadPoolExecutor(8) as pool:
        taken = [job_id for job_ids in pool.map(some_of_them, range(8)) for job_id in job_ids]
    assert Counter(taken) == dict.fromkeys(ids, 1)
    with store.read() as session:
        assert session.scalar(select(func.sum(Job.attempts))) == 60
        virtual = dict(session.execute(select(Attained.tenant_id, Attained.virtual_s)).all())
    assert max(virtual.values()) - min(virtual.values()) < 1.0, "each was charged with its 20"


def test_a_job_of_a_worker_that_went_silent_comes_first(store: Database) -> None:
    ask(store, "a", 1)
    lost = take(store)
    assert lost is not None
    ask(store, "b", 2, priority=10)
    with store.write() as session:
        session.execute(update(Job).where(Job.id == lost.job_id).values(lease_expires_at=1.0))
    again = take(store)
    assert again is not None and again.job_id == lost.job_id and again.attempts == 2


JOBS = some.lists(
    some.tuples(
        some.sampled_from(TENANTS),
        some.integers(-2, 2),
        some.sampled_from((0.5, 1.0, 3.0, 20.0, 300.0)),
    ),
    max_size=25,
)


@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(jobs=JOBS, weights=some.tuples(*[some.sampled_from((0.5, 1.0, 3.0))] * 3))
def test_the_database_claims_in_the_predicted_order(
    store: Database, jobs: list[tuple[str, int, float]], weights: tuple[float, float, float]
) -> None:
    with store.write() as session:
        session.execute(delete(Job))
        session.execute(delete(Attained))
        for tenant, weight in zip(TENANTS, weights, strict=True):
            set_limit(session, tenant, "weight", weight)
    for number, (tenant, priority, cost_s) in enumerate(jobs):
        ask(store, tenant, number, cost_s, priority)
    with store.read() as session:
        waiting = [
            Waiting(job.id, job.tenant_id, job.priority, job.cost_s, job.turn_s)
            for job in session.scalars(select(Job))
        ]
        attained = session.execute(select(Attained.tenant_id, Attained.virtual_s))
        of_tenant = dict(zip(TENANTS, weights, strict=True))
        shares = {tenant: Share(virtual_s, of_tenant[tenant]) for tenant, virtual_s in attained}
    predicted = places(waiting, shares, Slots((0.0,)))
    assert order(store, len(jobs) + 1) == sorted(predicted, key=lambda each: predicted[each].place)


@pytest.mark.parametrize(
    "database", ["sqlite", pytest.param("postgresql", marks=pytest.mark.full)], indirect=True
)
def test_a_real_worker_takes_the_other_tenants_question_next(store: Database) -> None:
    from service.edge.metrics import WorkerMetrics
    from worker.tasks import Worker

    graph = upload_of(mlp())
    profile = load_hardware("dgx-v100-16gb*1")
    with store.write() as session:
        for tenant in ("a", "b"):
            add_graph(session, tenant, graph.id, graph.canonical, graph.summary)

    def post(tenant: str, gpus: int, again: int) -> str:
        asked = FrontierRequest("g", "h", gpus, {"max_configurations": 50 + again})
        question = frontier_question(asked, graph.id, profile, Limits(8, 8))
        with store.write() as session:
            job, _ = find_or_make_job(
                session, tenant, question, max_queued=100, key_id=None, request_id="r", trace=None,
                estimate=lambda: Estimate(1.0, 1.0),
            )  # fmt: skip
            return job.id

    for number in range(30):
        post("a", 1, number)
    worker = Worker(Settings(), store, WorkerMetrics(), 1)
    assert worker.solve_next() == "done"
    assert context() == {}  # what the thread says next is not about that job
    mine = post("b", 1, 0)
    assert worker.solve_next() == "done"
    with store.read() as session:
        job = session.get_one(Job, mine)
        assert job.state == "done"
        assert job.took_s is not None and job.took_s > 0
        done = select(func.count()).where(Job.tenant_id == "a", Job.state == "done")
        assert session.scalar(done) == 1
        had = session.get_one(Attained, "b").virtual_s - session.get_one(Attained, "a").virtual_s
        assert abs(had) < 60.0
