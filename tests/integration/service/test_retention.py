"""Retention on both databases: by age and size, in batches, and nothing that lives loses what it
refers to, whatever the history."""

from __future__ import annotations

import itertools
import threading
import zlib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, event, func, select, update

from service.base.problems import Problem
from service.base.settings import Settings
from service.questions.question import Question
from service.store import retention
from service.store.database import Database, now
from service.store.graphs import add_graph, delete_graph, graph_content
from service.store.ids import new_id
from service.store.jobs import find_or_make_job
from service.store.keys import make_tenant, set_limit
from service.store.launch_tables import Assignment, Launch, LogLine, Run
from service.store.launches import forget_launch
from service.store.question_blobs import MAX_INLINE_BYTES, whole_question
from service.store.retention import BATCH, Retention, throw_away
from service.store.schema import migrate
from service.store.tables import (
    AcceptedBytes,
    GraphBlob,
    HardwareProfile,
    Job,
    OwnedGraph,
    QuestionBlob,
    Result,
    Watch,
)
from shardwise.hardware import hardware_document, load_hardware

DAY_S = 86400.0
EVER = Settings(job_s=0, result_s=0, launch_s=0, run_s=0, profile_s=0)
ACTIVE = ("queued", "running")


@pytest.fixture
def store(database: Database) -> Database:
    migrate(database)
    return database


@dataclass
class Tenant:
    """A tenant, and short words to give it a history; ages are days."""

    store: Database
    name: str = field(default_factory=lambda: new_id("t"))

    def __post_init__(self) -> None:
        self.add()

    def add(self, *rows: Any) -> None:
        with self.store.write() as session:
            make_tenant(session, self.name)
            session.add_all(rows)

    def all(self, table: Any) -> list[Any]:
        with self.store.read() as session:
            return list(session.scalars(select(table).where(table.tenant_id == self.name)))

    def graph(self, graph_id: str, owned: bool = True) -> None:
        with self.store.write() as session:
            if owned:
                add_graph(session, self.name, graph_id, b"{}", {"name": "g"})
            elif session.get(GraphBlob, graph_id) is None:
                session.add(GraphBlob(id=graph_id, content=zlib.compress(b"{}")))

    def job(
        self, content_id: str, state: str = "done", age: float = 0.0, *, blob: str | None = None,
        plan: str | None = None, size: int = 10, graph: str = "g",
    ) -> str:  # fmt: skip
        born = now() - age * DAY_S
        ended = None if state in ACTIVE else born
        job = Job(
            id=new_id("frontier"), tenant_id=self.name, kind="frontier", content_id=content_id,
            graph_id=graph, question={"kind": "frontier"}, state=state, created_at=born,
            ended_at=ended, rung_at=born, request_id="r", blob_id=blob,
        )  # fmt: skip
        job_id = str(job.id)
        self.add(job)
        if blob is not None:
            with self.store.write() as session:
                session.merge(QuestionBlob(id=blob, content=zlib.compress(b"{}")))
        if state == "done":
            self.add(
                Result(
                    tenant_id=self.name, content_id=content_id, kind="frontier", graph_id=graph,
                    answer_id=plan, created_at=born, content=b"x" * size, etag="", size_bytes=size,
                )
            )  # fmt: skip
        return job_id

    def watch(self, content_id: str, hardware: str = "l4", graph: str = "g") -> None:
        self.graph(graph)
        self.add(
            Watch(
                tenant_id=self.name, name=content_id, created_at=now(), content_id=content_id,
                graph_id=graph, hardware=hardware, max_gpus=2,
            )
        )  # fmt: skip

    def launch(
        self, state: str = "done", age: float = 0.0, *, plan: str | None = None,
        graph: str | None = None, hardware: str = "", part: str | None = None, lines: int = 0,
        runs: tuple[tuple[float, str], ...] = (),
    ) -> str:  # fmt: skip
        launch_id = new_id("launch")
        born = now() - age * DAY_S
        self.add(
            Launch(
                id=launch_id, tenant_id=self.name, kind="run", state=state, request={"kind": "run"},
                summary={"plan_id": plan, "hardware_id": hardware}, graph_id=graph, plan=b"plan",
                created_at=born, request_id="r", log_lines=lines,
                ended_at=None if state in (*ACTIVE, "starting") else born,
            )
        )  # fmt: skip
        if part is not None:
            self.add(
                Assignment(
                    id=new_id("asn"), tenant_id=self.name, launch_id=launch_id, attempt=1,
                    agent_id="a", agent_name="a", node_rank=0, slots=1, state=part, created_at=born,
                )
            )  # fmt: skip
        self.add(
            *(
                LogLine(launch_id=launch_id, number=n, rank=0, stream="s", line=n, text="x",
                        through_bytes=2 * n)
                for n in range(1, lines + 1)
            ),
            *(
                Run(id=new_id("run"), tenant_id=self.name, launch_id=launch_id, assignment_id="a",
                    name=str(n), created_at=now() - run_age * DAY_S, graph_id="g", graph_name="g",
                    hardware_id=on, hardware_name="h", device_kind="cpu", document={})
                for n, (run_age, on) in enumerate(runs)
            ),
        )  # fmt: skip
        return launch_id

    def profile(
        self, hardware_id: str, name: str, version: int, age: float, origin: str | None,
        previous: str | None = None,
    ) -> None:  # fmt: skip
        self.add(
            HardwareProfile(
                tenant_id=self.name, hardware_id=hardware_id, created_at=now() - age * DAY_S,
                name=name, document={}, version=version, previous_id=previous, size_bytes=2,
                summary={"id": hardware_id}, origin=origin,
            )
        )  # fmt: skip

    def lines(self, launch_id: str) -> int:
        with self.store.read() as session:
            query = select(func.count()).where(LogLine.launch_id == launch_id)
            return int(session.scalar(query) or 0)

    def blobs(self, table: Any) -> set[str]:
        with self.store.read() as session:
            return set(session.scalars(select(table.id)))


def test_zero_is_for_ever(store: Database) -> None:
    t = Tenant(store)
    t.job("c", age=9999)
    t.job("d", "failed", age=9999)
    launch = t.launch(age=9999, runs=((9999, "h"),))
    t.profile("h", "n", 1, 9999, "refit")
    t.profile("i", "n", 2, 9999, "refit")
    throw_away(store, EVER)
    assert len(t.all(Job)) == 2 and len(t.all(Result)) == 1
    assert [row.id for row in t.all(Launch)] == [launch]
    assert len(t.all(Run)) == 1 and len(t.all(HardwareProfile)) == 2


def test_jobs_go_with_their_answers_by_age(store: Database) -> None:
    t = Tenant(store)
    for age in (1, 50, 100):
        t.job(f"c{age}", age=age)
        t.job(f"f{age}", "failed", age=age)
    t.job("running", "running", age=999)
    throw_away(store, Settings(result_s=20 * DAY_S))
    kept = {job.content_id for job in t.all(Job)}
    assert kept == {"c1", "f1", "f50", "running"}
    assert [row.content_id for row in t.all(Result)] == ["c1"]


def test_the_oldest_answers_go_beyond_their_bytes(store: Database) -> None:
    t, other = Tenant(store), Tenant(store)
    for number in range(7):
        t.job(f"c{number}", age=10 - number, size=100, plan=f"plan{number}")
        other.job(f"c{number}", age=10 - number, size=100)
    t.watch("c0")
    t.launch("queued", plan="plan1")
    t.launch("done", plan="plan2")
    with store.write() as session:
        set_limit(session, t.name, "max_result_bytes", 450)
    throw_away(store, Settings())
    assert {row.content_id for row in t.all(Result)} == {"c0", "c1", "c5", "c6"}
    assert {row.content_id for row in t.all(Job)} == {"c0", "c1", "c5", "c6"}
    assert len(other.all(Result)) == 7


def test_the_oldest_ended_jobs_go_beyond_their_number(store: Database) -> None:
    t = Tenant(store)
    for number in range(6):
        t.job(f"c{number}", "cancelled", age=10 - number)
    t.job("old", "queued", age=99)
    throw_away(store, Settings(max_stored_jobs=3))
    assert {row.content_id for row in t.all(Job)} == {"old", "c4", "c5"}


def test_a_launch_stays_for_its_runs_without_its_plan(store: Database) -> None:
    t = Tenant(store)
    bare = t.launch(age=100, lines=5, part="done")
    measured = t.launch(age=100, lines=5, part="done", runs=((100, "h"),))
    young = t.launch(age=80, lines=5)
    running = t.launch(age=100, part="running")
    throw_away(store, Settings(log_s=90 * DAY_S))
    rows = {row.id: row for row in t.all(Launch)}
    assert set(rows) == {measured, young, running} and bare not in rows
    assert [t.lines(name) for name in (bare, measured, young)] == [0, 0, 5]
    with store.read() as session:
        plans = dict(session.execute(select(Launch.id, Launch.plan)).all())
        sizes = dict(session.execute(select(Launch.id, Launch.size_bytes)).all())
    assert plans[measured] is None and plans[young] == b"plan"
    assert 0 < sizes[measured] < 20
    with store.write() as session:
        session.execute(update(Run).values(created_at=now() - 400 * DAY_S))
    throw_away(store, Settings())
    throw_away(store, Settings())
    assert measured not in {row.id for row in t.all(Launch)}


def test_only_what_the_service_measured_goes_of_profiles(store: Database) -> None:
    t = Tenant(store)
    t.profile("up", "a", 1, 999, "uploaded")
    t.profile("unknown", "a", 2, 999, None)
    t.profile("former", "a", 3, 999, None, previous="up")
    t.profile("measured", "a", 4, 999, "measured")
    t.profile("watched", "a", 5, 999, "measured")
    t.profile("run_on", "a", 6, 999, "refit")
    t.profile("launched", "a", 7, 999, "refit")
    t.profile("base", "a", 8, 999, "refit")
    t.profile("young", "a", 9, 1, "refit", previous="base")
    t.profile("newest", "a", 10, 999, "refit")
    t.watch("c", hardware="watched*4")
    t.launch("queued", hardware="launched", runs=((1, "run_on"),))
    throw_away(store, Settings())
    kept = {row.hardware_id for row in t.all(HardwareProfile)}
    everything = {"up", "unknown", "former", "measured", "watched", "run_on", "launched", "base",
                  "young", "newest"}  # fmt: skip
    assert everything - kept == {"former", "measured"}


def test_orphans_go(store: Database) -> None:
    t = Tenant(store)
    t.graph("owned")
    for name in ("orphan", "running", "launched"):
        t.graph(name, owned=False)
    t.job("c", "running", graph="running")
    t.launch("starting", graph="launched")
    t.job("d", "failed", age=100, blob="gone")
    t.job("e", "failed", age=1, blob="kept")
    throw_away(store, Settings())
    assert t.blobs(GraphBlob) == {"owned", "running", "launched"}
    assert t.blobs(QuestionBlob) == {"kept"}


def test_days_that_are_over_go(store: Database) -> None:
    t = Tenant(store)
    with store.read() as session:
        today = int(session.scalar(select(now())) or 0) // int(DAY_S)
    t.add(
        *(AcceptedBytes(tenant_id=t.name, day=today - n, size_bytes=5) for n in (0, 1, 3, 9)),
    )
    throw_away(store, Settings())
    assert {today - row.day for row in t.all(AcceptedBytes)} == {0, 1}


def test_batches_are_bounded(store: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """No transaction deletes more than a batch; a sweep stops when its time is up and goes on."""
    monkeypatch.setattr(retention, "LINES", 50)
    t = Tenant(store)
    t.add(
        *(
            Job(id=f"j{n}", tenant_id=t.name, kind="frontier", content_id=f"c{n}", graph_id="g",
                question={}, state="failed", created_at=1.0, ended_at=1.0 + n, rung_at=1.0,
                request_id="r")
            for n in range(2 * BATCH + 50)
        )
    )  # fmt: skip
    launch = t.launch(age=100, lines=120)
    deleted: Counter[int] = Counter()
    number = 0

    @event.listens_for(store.engine, "commit")
    def committed(connection: Any) -> None:
        nonlocal number
        number += 1

    @event.listens_for(store.engine, "after_cursor_execute")
    def executed(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        if statement.startswith("DELETE"):
            deleted[number] += cursor.rowcount

    one = Retention(store, Settings())
    sweeps = 1
    while not one.sweep(within_s=0.0):
        sweeps += 1
        assert len(t.all(Job)) >= 2 * BATCH + 50 - sweeps * BATCH
    assert t.all(Job) == [] and t.all(Launch) == [] and t.lines(launch) == 0
    assert max(deleted.values()) <= BATCH
    assert sweeps >= 2 + 3, "jobs and lines went in several"


def test_rows_of_a_former_release_are_filled_in(store: Database) -> None:
    t = Tenant(store)
    t.job("c", size=123)
    launch = t.launch(runs=((1, "h"),))
    profile = load_hardware("l4")
    t.add(
        HardwareProfile(
            tenant_id=t.name, hardware_id=profile.id, created_at=1.0, name="l4",
            document=hardware_document(profile), version=1,
        )
    )  # fmt: skip
    with store.write() as session:
        session.execute(update(Result).values(size_bytes=0))
    throw_away(store, Settings())
    assert [row.size_bytes for row in t.all(Result)] == [123]
    (stored,) = t.all(HardwareProfile)
    assert stored.size_bytes > 500 and stored.summary["id"] == profile.id
    assert [row.size_bytes for row in t.all(Run)] == [2]
    assert [row.size_bytes > 10 for row in t.all(Launch) if row.id == launch] == [True]


def test_a_graph_that_a_launch_needs_is_not_deleted(store: Database) -> None:
    t = Tenant(store)
    t.graph("sha256:g")
    launch = t.launch("running", graph="sha256:g")
    with store.write() as session, pytest.raises(Problem) as kept:
        delete_graph(session, t.name, "sha256:g")
    assert kept.value.slug == "in-use"
    with store.write() as session, pytest.raises(Problem) as active:
        forget_launch(session, t.name, launch)
    assert active.value.slug == "in-use"
    with store.write() as session:
        session.execute(update(Launch).values(state="done"))
    with store.write() as session:
        delete_graph(session, t.name, "sha256:g")
        forget_launch(session, t.name, launch)
    assert t.all(OwnedGraph) == [] and t.all(Launch) == []


AGES = st.sampled_from([0.0, 30.0, 100.0])
CONTENT = st.sampled_from([f"c{n}" for n in range(5)])
PLANS = st.sampled_from(["plan0", "plan1"])
BLOBS = st.sampled_from([None, "b0", "b1", "b2"])
GRAPHS = st.sampled_from([f"g{n}" for n in range(3)])
PROFILES = st.sampled_from(["h0", "h1", "h2"])
JOBS = st.fixed_dictionaries(
    {
        "content_id": CONTENT,
        "state": st.sampled_from(["queued", "running", "done", "done", "failed", "cancelled"]),
        "age": AGES, "blob": BLOBS, "plan": PLANS, "size": st.integers(1, 50), "graph": GRAPHS,
    }
)  # fmt: skip
LAUNCHES = st.fixed_dictionaries(
    {
        "state": st.sampled_from(["queued", "starting", "running", "done", "failed"]),
        "age": AGES, "plan": PLANS, "graph": GRAPHS, "hardware": PROFILES,
        "part": st.sampled_from([None, "done", "running"]), "lines": st.integers(0, 3),
        "runs": st.lists(st.tuples(AGES, PROFILES), max_size=2).map(tuple),
    }
)  # fmt: skip
HISTORY = st.fixed_dictionaries(
    {
        "jobs": st.lists(JOBS, min_size=4, max_size=12),
        "launches": st.lists(LAUNCHES, min_size=1, max_size=4),
        "watches": st.dictionaries(CONTENT, PROFILES, min_size=1, max_size=3),
        "profiles": st.lists(
            st.tuples(st.sampled_from(["a", "b"]), AGES,
                      st.sampled_from(["uploaded", "measured", "refit", "refit"])),
            min_size=6, max_size=6,
        ),
    }
)  # fmt: skip
RULES = st.builds(
    Settings,
    job_s=st.sampled_from([0.0, 10 * DAY_S]),
    result_s=st.sampled_from([0.0, 5 * DAY_S]),
    launch_s=st.sampled_from([0.0, 10 * DAY_S]),
    run_s=st.sampled_from([0.0, 60 * DAY_S]),
    profile_s=st.sampled_from([0.0, 10 * DAY_S]),
    log_s=st.sampled_from([5 * DAY_S, 200 * DAY_S]),
    max_stored_jobs=st.sampled_from([2, 1000]),
    max_result_bytes=st.sampled_from([60, 10**9]),
)


@settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(history=HISTORY, rules=RULES)
def test_nothing_that_lives_loses_what_it_refers_to(
    store: Database, history: dict[str, Any], rules: Settings
) -> None:
    t = Tenant(store)
    wanted = set()
    for graph in ("g0", "g1"):
        t.graph(f"{t.name}-{graph}", owned=False)
    t.graph(f"{t.name}-g2")
    for job in history["jobs"]:
        # Of one question at most one job is queued, running or done.
        if job["state"] in (*ACTIVE, "done"):
            if job["content_id"] in wanted:
                continue
            wanted.add(job["content_id"])
        blob = job["blob"] and f"{t.name}-{job['blob']}"
        t.job(**{**job, "blob": blob, "graph": f"{t.name}-{job['graph']}"})
    for content_id, hardware in history["watches"].items():
        t.watch(content_id, hardware, f"{t.name}-g2")
    for launch in history["launches"]:
        t.launch(**{**launch, "graph": f"{t.name}-{launch['graph']}"})
    versions: Counter[str] = Counter()
    for number, (name, age, origin) in enumerate(history["profiles"]):
        versions[name] += 1
        t.profile(f"h{number}", name, versions[name], age, origin)
    before = see(t)
    throw_away(store, rules)
    after = see(t)

    assert after.watches == before.watches
    assert after.active_jobs == before.active_jobs
    assert after.active_launches == before.active_launches
    for content_id in before.watches:
        assert (content_id in after.results) == (content_id in before.results)
    plans = {row[1] for row in before.active_launches.values()}
    for content_id, plan in before.results.items():
        assert plan not in plans or content_id in after.results
    assert set(after.results) == after.done, "a done job and its answer go together"
    assert after.job_blobs <= t.blobs(QuestionBlob)
    needed = {row[0] for row in (*after.active_jobs.values(), *after.active_launches.values())}
    assert needed <= t.blobs(GraphBlob)
    active = {row[2] for row in before.active_launches.values()}
    known = {f"h{n}" for n in range(len(history["profiles"]))}
    for name in (after.run_on | active | set(before.watches.values())) & known:
        assert name in after.profiles
    for name, count in versions.items():
        assert (name, count) in after.profiles.values(), "the newest version stays"
    # And what nothing refers to has gone.
    if rules.job_s:
        assert not any(state != "done" and age > 10 for state, age in after.ended)
    own = {blob for blob in t.blobs(QuestionBlob) if blob.startswith(t.name)}
    assert own == after.job_blobs
    if rules.run_s and rules.launch_s:
        throw_away(store, rules)  # a launch whose runs have just gone
        for row in t.all(Launch):
            if row.state in ("done", "failed") and row.id in before.old_launches:
                assert row.id in before.held or row.id in {run.launch_id for run in t.all(Run)}


@dataclass
class Seen:
    """What a tenant has: contents, not times."""

    active_jobs: dict[str, tuple[Any, ...]]
    done: set[str]
    ended: list[tuple[str, float]]
    job_blobs: set[str]
    results: dict[str, str | None]
    watches: dict[str, str]
    active_launches: dict[str, tuple[Any, ...]]
    old_launches: set[str]
    held: set[str]
    run_on: set[str]
    profiles: dict[str, tuple[str, int]]


def see(t: Tenant) -> Seen:
    with t.store.read() as session:
        clock = float(session.scalar(select(now())) or 0.0)
        plans = dict(session.execute(select(Launch.id, Launch.plan)).all())
    jobs, launches, runs = t.all(Job), t.all(Launch), t.all(Run)
    parts = t.all(Assignment)
    active = [row for row in launches if row.ended_at is None]
    return Seen(
        {j.id: (j.graph_id, j.blob_id, j.content_id) for j in jobs if j.state in ACTIVE},
        {j.content_id for j in jobs if j.state == "done"},
        [(j.state, (clock - j.ended_at) / DAY_S) for j in jobs if j.ended_at is not None],
        {j.blob_id for j in jobs if j.blob_id is not None},
        {r.content_id: r.answer_id for r in t.all(Result)},
        {w.content_id: w.hardware for w in t.all(Watch)},
        {
            row.id: (
                row.graph_id, row.summary["plan_id"], row.summary["hardware_id"], plans[row.id],
                t.lines(row.id), sorted(run.id for run in runs if run.launch_id == row.id),
                sorted(part.id for part in parts if part.launch_id == row.id),
            )
            for row in active
        },
        {r.id for r in launches if r.ended_at is not None and clock - r.ended_at > 11 * DAY_S},
        {part.launch_id for part in parts if part.state == "running"},
        {run.hardware_id for run in runs},
        {p.hardware_id: (p.name, p.version) for p in t.all(HardwareProfile)},
    )  # fmt: skip


@pytest.mark.parametrize("database", ["sqlite", "postgresql"], indirect=True)
def test_blobs_stay_for_rows_that_begin_to_refer_to_them(store: Database) -> None:
    """Others store, refer to and let go of the same blobs while retention runs again and again."""
    names = [Tenant(store).name for _ in range(3)]
    hardware = {"name": "h", "levels": "x" * 2 * MAX_INLINE_BYTES}
    over, cleaned_twice = threading.Event(), threading.Event()

    def post(name: str) -> None:
        for number in itertools.count():
            if number >= 15 and cleaned_twice.is_set():
                break
            assert number < 10_000, "retention never had its turn"
            asked = {"kind": "frontier", "graph": "g", "gpus": number, "hardware": hardware}
            with store.write() as session:
                add_graph(session, name, "shared", b"{}", {"name": "g"})
                job, _ = find_or_make_job(
                    session, name, Question("frontier", "shared", asked), max_queued=99,
                    key_id=None, request_id="r", trace=None,
                )  # fmt: skip
                job_id = job.id
            with store.write() as session:
                question = whole_question(session, session.get_one(Job, job_id))
                assert question["hardware"] == hardware
                assert graph_content(session, "shared") == b"{}"
            with store.write() as session:
                session.execute(delete(Job).where(Job.id == job_id))
                delete_graph(session, name, "shared")

    def clean() -> None:
        for rounds in itertools.count(1):
            throw_away(store, Settings())
            if rounds == 2:
                cleaned_twice.set()
            if over.is_set():
                break

    with ThreadPoolExecutor(4) as pool:
        cleaned = pool.submit(clean)
        cleaned.add_done_callback(lambda _: cleaned_twice.set())
        try:
            list(pool.map(post, names))
        finally:
            over.set()
        cleaned.result()
    throw_away(store, Settings())
    with store.read() as session:
        for table in (GraphBlob, QuestionBlob, Job):
            assert session.scalar(select(func.count()).select_from(table)) == 0
