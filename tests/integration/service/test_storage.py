"""Storage is bounded on both databases: quotas, lists, repeated answers, questions by reference."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from sqlalchemy import Text, cast, func, select, update
from starlette.testclient import TestClient

from harness.service.fake_agent import inventory
from harness.service.launch_calls import PLAN, measurement
from service.base.problems import Problem
from service.base.settings import Settings
from service.cluster.reports import LogReport, Report, ResultReport, StateReport
from service.host.app import create_app
from service.questions.question import Question
from service.store import leases
from service.store.database import Database
from service.store.enrolment import Enrolled, enrol, make_token
from service.store.gangs import claim, rules_of
from service.store.hardware import add_hardware
from service.store.jobs import find_or_make_job
from service.store.keys import LIMITS, LOCAL_TENANT, make_tenant, set_limit
from service.store.launch_tables import Agent, Launch, LogLine, Run
from service.store.launches import make_launch
from service.store.placement import place
from service.store.question_blobs import MAX_INLINE_BYTES
from service.store.quotas import QUOTAS, Room, accept_bytes
from service.store.records import worker_seen
from service.store.reports import Bounds, take_reports
from service.store.results import etag_of
from service.store.schema import migrate
from service.store.tables import (
    AcceptedBytes,
    Audit,
    HardwareProfile,
    Idempotency,
    Job,
    OwnedGraph,
    QuestionBlob,
    Result,
    WorkerRow,
)
from shardwise.hardware import Hardware, hardware_document, load_hardware

T = LOCAL_TENANT
MB = 10**6
RULES = rules_of(Settings())
ASK = {"graph": "shipped:vgg16", "gpus": 1}

RACING = pytest.mark.parametrize("database", ["sqlite", "postgresql"], indirect=True)
"""Writers race: what keeps each from writing too much is another lock in each database."""


@pytest.fixture
def store(database: Database) -> Database:
    migrate(database)
    with database.write() as session:
        make_tenant(session, T)
    return database


@pytest.fixture
def client(store: Database, redis_url: str) -> Iterator[TestClient]:
    """The service as it answers, in this process; its queue has no workers."""
    settings = Settings(redis_url=redis_url, queue=f"storage-{secrets.token_hex(4)}")
    with TestClient(create_app(settings, store), base_url="http://127.0.0.1") as opened:
        yield opened


def room(**limits: int) -> Room:
    return Room(T, Settings(), limits)


def large(number: int = 0, size: int = MB) -> Hardware:
    """Returns a profile whose document has the given size in bytes and is hard to compress."""
    provenance = f"{number} {secrets.token_hex(size // 2)}"
    return replace(load_hardware("l4"), name=f"p{number}", provenance=provenance)


def written(profile: Hardware) -> Any:
    """Its document as it comes out of a database."""
    return msgspec.json.decode(msgspec.json.encode(hardware_document(profile)))


def at_once(count: int, act: Callable[[int], Any]) -> list[Any]:
    """Returns what concurrent calls of `act` give; a problem is an outcome too."""

    def one(number: int) -> Any:
        try:
            return act(number)
        except Problem as problem:
            return problem

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


def refused(outcomes: list[Any], quota: str, limit: int) -> int:
    """How many were refused; each says for which quota, what is used and how to free it."""
    problems = [one for one in outcomes if isinstance(one, Problem)]
    for problem in problems:
        assert problem.slug == "quota"
        assert (problem.extra["quota"], problem.extra["limit"]) == (quota, limit)
        assert QUOTAS[quota].free in problem.detail
    return len(problems)


@RACING
def test_profiles_are_bounded_by_number_and_bytes(store: Database) -> None:
    profiles = [large(n, 20_000) for n in range(8)]

    def post(bounds: Room) -> Callable[[int], bool]:
        def act(number: int) -> bool:
            with store.write() as session:
                return add_hardware(session, T, profiles[number], room=bounds)

        return act

    assert refused(at_once(8, post(room(max_profiles=3))), "max_profiles", 3) == 5
    with store.read() as session:
        assert session.scalar(select(func.count()).select_from(HardwareProfile)) == 3
        known = session.scalars(select(HardwareProfile.hardware_id)).all()
        used = room().used(session, "max_profile_bytes")
    assert 60_000 < used < 75_000
    limit = used + 25_000
    assert refused(at_once(8, post(room(max_profile_bytes=limit))), "max_profile_bytes", limit) == 4
    mine = next(n for n in range(8) if profiles[n].id in known)
    assert post(room(max_profiles=1))(mine) is False, "a profile that is stored takes no room"


@RACING
def test_launches_are_bounded_ended_ones_too(store: Database) -> None:
    bounds = room(max_stored_launches=3)

    def start(number: int) -> str:
        with store.write() as session:
            return make_launch(
                session, T, request={"kind": "run"}, plan=None, summary={}, graph_id=None,
                max_launches=100, room=bounds, key_id=None, request_id="r",
            ).id  # fmt: skip

    assert refused(at_once(8, start), "max_stored_launches", 3) == 5
    with store.write() as session:
        session.execute(update(Launch).values(state="done", ended_at=1.0))
    with pytest.raises(Problem, match=r"forget=true"):
        start(0)
    bounds = room(max_launch_bytes=100)
    with store.write() as session:
        session.execute(update(Launch).values(ended_at=None, log_bytes=1000))
    with pytest.raises(Problem) as full:
        start(0)
    assert full.value.extra["quota"] == "max_launch_bytes", "output counts"


@RACING
def test_bytes_of_a_day_are_bounded(store: Database) -> None:
    def accept(number: int) -> None:
        with store.write() as session:
            accept_bytes(session, room(max_bytes_per_day=1000), 300)

    assert refused(at_once(8, accept), "max_bytes_per_day", 1000) == 5
    with store.read() as session:
        assert session.scalars(select(AcceptedBytes.size_bytes)).all() == [900]
    with store.write() as session:
        session.execute(update(AcceptedBytes).values(day=AcceptedBytes.day - 1))
    accept(0)


def measuring(store: Database) -> tuple[str, Any]:
    """An agent, and the part of a launch that it runs."""
    with store.write() as session:
        token, _ = make_token(session, T, "a", 60.0)
        enrolled = enrol(
            session, token, None, name="a", inventory=inventory(2), lease_s=300.0, max_agents=9
        )
        assert isinstance(enrolled, Enrolled)
        request = {
            "kind": "measure", "entry_point": "shardwise.measure", "arguments": [],
            "environment": {}, "agents": 1, "ranks_per_agent": 1, "hardware": "measured",
        }  # fmt: skip
        make_launch(
            session, T, request=request, plan=PLAN, summary={}, graph_id=None, max_launches=9,
            key_id=None, request_id="r",
        )  # fmt: skip
    with store.write() as session:
        place(session, T, RULES)
    with store.write() as session:
        part = claim(session, enrolled.agent_id, RULES)
    assert part is not None
    return enrolled.agent_id, part


def test_measured_runs_are_bounded(store: Database) -> None:
    """A report beyond the bound is refused with the reason; how the launch goes is still taken."""
    agent, part = measuring(store)
    bounds = Bounds(100, 10_000)

    def take(*reports: Report, limits: Room, full_day: str | None = None) -> Any:
        with store.write() as session:
            taken = take_reports(session, agent, reports, RULES, bounds, limits, full_day)
        assert taken is not None
        return taken

    def result(name: str, document: dict[str, Any]) -> ResultReport:
        return ResultReport(
            kind="result", id=secrets.token_hex(16), assignment=part.id, token=part.token,
            name=name, document=document,
        )  # fmt: skip

    limits = room(max_runs=2, max_profiles=1)
    names = ("a", "b", "c")
    taken = take(*(result(name, measurement()) for name in names), limits=limits)
    assert len(taken.accepted) == 2
    assert "2 of 2 measured runs are used" in next(iter(taken.refused.values()))
    again = take(result("a", measurement(1.5)), limits=limits)
    assert again.accepted, "a run that is measured again takes no more room"
    documents = [hardware_document(large(n, 1000)) for n in range(2)]
    taken = take(*(result(str(n), documents[n]) for n in range(2)), limits=limits)
    assert (len(taken.accepted), len(taken.refused)) == (1, 1)
    taken = take(result("d", measurement(note="x" * 5000)), limits=room(max_run_bytes=5000))
    assert "bytes of measured runs" in next(iter(taken.refused.values()))

    words = {"assignment": part.id, "token": part.token}
    log = LogReport(
        kind="log",
        id=secrets.token_hex(16),
        rank=0,
        stream="stdout",
        first_line=1,
        lines=["x"],
        **words,
    )
    done = StateReport(kind="state", id=secrets.token_hex(16), state="running", **words)
    taken = take(log, done, limits=room(), full_day="the day is full")
    assert taken.accepted == [done.id] and taken.refused == {log.id: "the day is full"}
    assert take(log, limits=room()).accepted == [log.id], "on the next day it is taken"
    with store.read() as session:
        assert session.scalar(select(func.count()).select_from(Run)) == 2


def test_over_http_a_quota_is_a_problem(client: TestClient, store: Database) -> None:
    for name in QUOTAS:
        assert name in LIMITS or name == "max_agents", "a tenant may have its own value"
    document = hardware_document(large(0, 3000))
    assert client.post("/v1/hardware", json=document).status_code == 201
    before = client.get("/v1/usage").json()["quotas"]
    assert before["max_profiles"] == {"used": 1, "limit": 1000, "what": "hardware profiles"}
    assert 3000 < before["max_bytes_per_day"]["used"] < 8000
    with store.write() as session:
        set_limit(session, T, "max_profiles", 1)
        set_limit(session, T, "max_bytes_per_day", before["max_bytes_per_day"]["used"] + 10)
    client.app.state.shardwise.gate._open = (0.0, None)  # what it remembers of the tenant
    answer = client.post("/v1/hardware", json=hardware_document(large(1, 3000)))
    assert (answer.status_code, answer.json()["quota"]) == (429, "max_profiles")
    assert client.post("/v1/hardware", json=document).status_code == 200, "nothing is stored"
    problem = client.post("/v1/frontiers", json={**ASK, "hardware": "l4"}).json()
    assert (problem["quota"], problem["limit"] - problem["used"]) == ("max_bytes_per_day", 10)
    with store.read() as session:
        assert session.scalar(select(func.count()).select_from(Job)) == 0
        assert session.scalar(select(func.count()).select_from(OwnedGraph)) == 0
    usage = client.get("/v1/usage").json()
    assert set(usage["quotas"]) == set(QUOTAS)
    page = client.get("/usage").text
    assert page.index("Hardware profiles") < page.index("Measured runs"), "the fullest first"
    assert usage["quotas"]["max_profiles"]["limit"] == 1


def test_a_forgotten_launch_makes_room(client: TestClient, store: Database) -> None:
    body = {"kind": "measure", "agents": 1}
    where = client.post("/v1/launches", json=body).json()["location"]
    forget = {"forget": "true"}
    assert client.delete(where, params={"forget": "yes"}).status_code == 422
    assert client.delete(where, params=forget).json()["type"].endswith(":in-use")
    assert client.delete(where).json()["state"] == "stopped"
    with store.write() as session:
        launch_id = where.rpartition("/")[2]
        session.add(
            LogLine(
                launch_id=launch_id, number=1, rank=0, stream="s", line=1, text="x",
                through_bytes=2,
            )
        )  # fmt: skip
    assert client.delete(where, params=forget).status_code == 204
    assert client.get(where).status_code == 404
    assert client.get("/v1/usage").json()["quotas"]["max_stored_launches"]["used"] == 0


def test_lists_carry_no_whole_documents(client: TestClient, store: Database) -> None:
    """20 profiles of 1 MB, launches, agents and jobs with as much as may be uploaded."""
    with store.write() as session:
        for number in range(20):
            add_hardware(session, T, replace(large(number), name="n" * 100_000))
        summary = {"graph_name": "g" * 9999, "predicted": {str(n): 1.0 for n in range(9999)}}
        request = {
            "kind": "run", "entry_point": "train", "arguments": ["a" * 4096] * 256,
            "environment": {}, "agents": ["agent_x"] * 1000, "ranks_per_agent": 1,
        }  # fmt: skip
        for number in range(20):
            make_launch(
                session, T, request=request, plan={"x": "y" * 10**6}, summary=summary,
                graph_id=None, max_launches=100, key_id=None, request_id="r",
            )  # fmt: skip
            session.add(agent_with_much(number))
            options = {"pins": ["p" * 500] * 1000}
            document = {"kind": "frontier", "graph": "g", "gpus": number, "options": options}
            document["hardware"] = hardware_document(large(1, 2 * MAX_INLINE_BYTES))
            find_or_make_job(
                session, T, Question("frontier", "sha256:g", document), max_queued=100,
                key_id=None, request_id="r", trace=None,
            )  # fmt: skip
    pages = {}
    for name, most in (("hardware", 120_000), ("launches", 60_000), ("agents", 200_000),
                       ("jobs", 60_000)):  # fmt: skip
        answer = client.get(f"/v1/{name}?limit=200")
        assert answer.status_code == 200, answer.text[:500]
        assert len(answer.content) < most, f"{name}: {len(answer.content)} bytes"
        pages[name] = answer.json()["items"]
    assert [len(pages[name]) for name in ("hardware", "launches", "jobs")] == [20, 20, 20]
    assert pages["launches"][0]["request"]["agents"] == 1000
    assert pages["jobs"][0]["question"]["hardware"] == "p1"
    kinds = {device["kind"] for device in pages["agents"][0]["inventory"]["devices"]}
    assert kinds == {"H100"}
    for name in ("launches", "jobs"):
        whole = client.get(pages[name][0]["location"])
        assert len(whole.content) > 400_000, "one by one they are whole"
    with store.read() as session:
        loaded = session.scalars(select(HardwareProfile).limit(1)).one()
        assert loaded.size_bytes > MB


def agent_with_much(number: int) -> Agent:
    devices = [
        {"index": i, "kind": "H100", "memory_bytes": 8e10, "uuid": "u" * 150} for i in range(256)
    ]
    return Agent(
        id=f"agent_{number}", tenant_id=T, name="n" * 200, key_id="k", created_at=float(number),
        seen_at=1.0, lease_expires_at=9e9, state="live", slots=256,
        inventory={**inventory(256), "devices": devices},
    )  # fmt: skip


def finished(store: Database, job_id: str, size: int) -> bytes:
    """Answers a job as a worker does, with a result of the given size in bytes."""
    with store.write() as session:
        lease = leases.claim_next(session, 30.0, 3)
        while lease is not None and lease.job_id != job_id:
            lease = leases.claim_next(session, 30.0, 3)
        assert lease is not None
    content = msgspec.json.encode({"schema": "shardwise.frontier/1", "x": secrets.token_hex(size)})
    with store.write() as session:
        assert leases.finish(session, lease, content, etag_of(content), None)
    return content


def test_a_repeat_of_a_large_answer_costs_little(client: TestClient, store: Database) -> None:
    body = {**ASK, "hardware": "l4"}
    job = client.post("/v1/frontiers", json=body).json()
    finished(store, job["id"], MB // 2)
    once = {"Idempotency-Key": "once"}
    first = client.post("/v1/frontiers", json=body, headers=once)
    assert first.status_code == 200 and len(first.content) > MB
    again = client.post("/v1/frontiers", json=body, headers=once)
    assert again.headers["Idempotency-Replayed"] == "true"
    assert (again.status_code, again.content) == (200, first.content)
    assert again.headers["Location"] == first.headers["Location"]
    assert again.headers["ETag"] == first.headers["ETag"]
    assert kept_bytes(store) < 8192
    with store.write() as session:
        session.execute(Result.__table__.delete())
    gone = client.post("/v1/frontiers", json=body, headers=once)
    assert gone.status_code == 404


def test_a_repeated_launch_is_answered_as_at_first(client: TestClient, store: Database) -> None:
    body = {"kind": "measure", "agents": 1, "arguments": ["x" * 4000] * 200}
    once = {"Idempotency-Key": "once"}
    first = client.post("/v1/launches", json=body, headers=once)
    assert first.status_code == 201 and len(first.content) > 800_000
    client.delete(first.json()["location"])
    again = client.post("/v1/launches", json=body, headers=once)
    assert (again.status_code, again.content) == (201, first.content)
    assert kept_bytes(store) < 8192
    assert len(client.get("/v1/launches").json()["items"]) == 1


def test_large_answers_without_a_resource_are_rebuilt(client: TestClient, store: Database) -> None:
    jobs = [{"graph": "shipped:vgg16", "hardware": "l4", "options": {"epsilon": n / 100}}
            for n in range(1, 31)]  # fmt: skip
    body = {"gpus": 2, "jobs": jobs}
    once = {"Idempotency-Key": "once"}
    first = client.post("/v1/allocations", json=body, headers=once)
    again = client.post("/v1/allocations", json=body, headers=once)
    assert (first.status_code, again.status_code) == (202, 202)
    waiting = [{job["id"] for job in one.json()["waiting_for"]} for one in (first, again)]
    assert waiting[0] == waiting[1] and len(waiting[0]) == 30
    assert kept_bytes(store) < 8192


def test_rows_of_the_former_release_are_repeated(client: TestClient, store: Database) -> None:
    """They hold the whole answer and no reference."""
    body = {**ASK, "hardware": "l4"}
    once = {"Idempotency-Key": "once"}
    first = client.post("/v1/frontiers", json=body, headers=once)
    assert first.status_code == 202
    with store.write() as session:
        session.execute(update(Idempotency).values(content=b"x" * 9000, reference=None))
    again = client.post("/v1/frontiers", json=body, headers=once)
    assert (again.status_code, again.content) == (202, b"x" * 9000)


def kept_bytes(store: Database) -> int:
    size = func.length(Idempotency.content) + func.length(cast(Idempotency.headers, Text))
    size += func.coalesce(func.length(cast(Idempotency.reference, Text)), 0)
    with store.read() as session:
        return int(session.scalar(select(func.sum(size))) or 0)


def test_jobs_refer_to_their_profile(client: TestClient, store: Database) -> None:
    """100 jobs on a profile of 1 MB; each worker still gets the whole question."""
    profile = large(0)
    with store.write() as session:
        add_hardware(session, T, profile)
    body = {**ASK, "hardware": profile.id}
    answer = client.post("/v1/frontiers", json=body)
    assert answer.status_code == 202, answer.text
    assert answer.json()["question"]["hardware"] == "p0"
    ids = [answer.json()["id"]]
    document = hardware_document(profile)
    for number in range(99):
        asked = {"kind": "frontier", "graph": "g", "gpus": number, "hardware": document}
        with store.write() as session:
            job, _ = find_or_make_job(
                session, T, Question("frontier", "g", {**asked, "hardware_id": profile.id}),
                max_queued=200, key_id=None, request_id="r", trace=None,
            )  # fmt: skip
            ids.append(job.id)
    with store.read() as session:
        assert len(session.scalars(select(QuestionBlob.id)).all()) == 1
        jobs = session.scalar(select(func.sum(func.length(cast(Job.question, Text)))))
        blobs = session.scalar(select(func.sum(func.length(QuestionBlob.content))))
    assert (jobs or 0) + (blobs or 0) < MB
    with store.write() as session:
        lease = leases.claim_next(session, 30.0, 3)
    assert lease is not None
    assert lease.question["hardware"] == written(profile)
    assert lease.question["hardware_id"] == profile.id


def test_while_an_older_worker_lives_questions_are_whole(
    client: TestClient, store: Database
) -> None:
    """It would take the reference for a profile that cannot be read, and fail the job."""
    profile = large(0, 2 * MAX_INLINE_BYTES)
    with store.write() as session:
        add_hardware(session, T, profile)
        worker_seen(session, "worker_new", "host", 1, 1)
        session.execute(
            WorkerRow.__table__.insert().values(
                id="worker_old", host="h", pid=2, slots=1, started_at=1.0,
                seen_at=select(WorkerRow.seen_at).scalar_subquery(),
            )
        )  # fmt: skip

    def stored(epsilon: float) -> Job:
        body = {**ASK, "hardware": profile.id, "options": {"epsilon": epsilon}}
        job = client.post("/v1/frontiers", json=body).json()
        with store.read() as session:
            return session.get_one(Job, job["id"])

    job = stored(0.1)
    assert job.blob_id is None and job.question["hardware"] == written(profile)
    with store.write() as session:
        session.execute(update(WorkerRow).where(WorkerRow.id == "worker_old").values(seen_at=1.0))
    assert stored(0.2).blob_id is not None


def test_quotas_leave_a_line_of_the_audit_only_for_what_was_stored(
    client: TestClient, store: Database
) -> None:
    with store.write() as session:
        set_limit(session, T, "max_bytes_per_day", 100)
    body = hardware_document(large(0, 3000))
    assert client.post("/v1/hardware", json=body).status_code == 429
    with store.read() as session:
        assert session.scalar(select(func.count()).select_from(Audit)) == 0
        assert session.scalar(select(func.count()).select_from(AcceptedBytes)) == 0
