"""A tenant's archive and its deletion on both databases: whole, bounded, resumed after a crash."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import func, insert, select

from service.base.archive import File, read_files, tar_gz
from service.base.settings import Settings
from service.store import tenant_deletion, tenant_export
from service.store.database import Database
from service.store.enrolment import Enrolled, enrol, make_token
from service.store.gangs import rules_of
from service.store.graphs import add_graph
from service.store.keys import create_key, make_tenant, principal_of
from service.store.launch_tables import Assignment, Launch, LogLine, Report, Run
from service.store.metadata import METADATA
from service.store.question_blobs import put_aside
from service.store.quotas import Room, accept_bytes
from service.store.records import record, reserve
from service.store.schema import migrate
from service.store.tables import (
    Attained,
    Audit,
    CurvePoint,
    GraphBlob,
    HardwareProfile,
    Job,
    LoginSession,
    Result,
    Tenant,
    Watch,
)
from service.store.tenant_deletion import begin_deletion, sweep_deletions, tenant_tables
from service.store.tenant_export import LEFT_OUT, NOT_EXPORTED, NOUNS, tenant_files
from service.store.webhook_tables import Webhook, WebhookDelivery

RULES = rules_of(Settings())
SUMMARY = {"name": "g"}
INVENTORY = {"schema": "shardwise.inventory/1", "host": "h", "slots": 2, "devices": []}


@pytest.fixture
def store(database: Database) -> Database:
    migrate(database)
    return database


def fill(store: Database, tenant: str, rows: int = 3) -> str:
    """Gives a tenant some of everything. Returns a key of it."""
    with store.write() as session:
        key = create_key(session, tenant, ("admin",), "first")
        add_graph(session, tenant, "sha256:shared", b'{"of": "everybody"}', SUMMARY)
        for n in range(rows):
            add_graph(session, tenant, f"sha256:{tenant}{n}", b'{"of": "%d"}' % n, SUMMARY)
            common = {"tenant_id": tenant, "created_at": float(n)}
            session.add(HardwareProfile(**common, hardware_id=f"sha256:h{n}", name="h",
                                        document={"n": n}, version=n + 1))  # fmt: skip
            session.add(
                Job(**common, id=f"{tenant}-job-{n}", kind="plan", content_id=f"sha256:c{n}",
                    graph_id="sha256:shared", question={"kind": "plan"}, rung_at=0.0,
                    state=("queued", "running", "done")[n % 3], request_id="r",
                    lease_token="secret-lease")
            )  # fmt: skip
            session.add(
                Result(**common, content_id=f"sha256:c{n}", kind="plan", etag="e",
                       graph_id="sha256:shared", content=b'{"answer": %d}' % n)
            )  # fmt: skip
            session.add(
                Launch(**common, id=f"{tenant}-launch-{n}", kind="run", state="queued", request={},
                       summary={}, request_id="r")
            )  # fmt: skip
            session.flush()
            session.add(
                LogLine(launch_id=f"{tenant}-launch-{n}", number=1, rank=0, stream="stdout",
                        line=1, text=f"a line of {tenant}", through_bytes=9)
            )  # fmt: skip
            session.add(
                Run(**common, id=f"{tenant}-run-{n}", launch_id=f"{tenant}-launch-{n}",
                    assignment_id="a", name="m", graph_id="g", graph_name="g", hardware_id="h",
                    hardware_name="h", device_kind="d", document={"n": n})
            )  # fmt: skip
            record(session, tenant=tenant, key_id=None, request_id="r", action="a.b", target="t",
                   status=200)  # fmt: skip
        session.add(Watch(tenant_id=tenant, name="w", created_at=1.0, content_id="c",
                          graph_id="sha256:shared", hardware="h", max_gpus=1))  # fmt: skip
        session.add(
            CurvePoint(tenant_id=tenant, point_id="sha256:p", graph_id="sha256:shared",
                       changed_at=1.0, content=b'{"points": []}', size_bytes=14,
                       job_id="j", lease_token="secret-lease")
        )  # fmt: skip
        reserve(session, tenant, "once", "hash")
        session.add(
            LoginSession(id=f"hash of {tenant}", tenant_id=tenant, subject="ada", name="Ada",
                         groups=[], created_at=1.0, expires_at=2.0)
        )  # fmt: skip
        session.add(
            Webhook(id=f"{tenant}-hook", tenant_id=tenant, name="", url="https://example.org",
                    authority="example.org", events=[], kinds=[], states=[], salt="secret-salt",
                    key_fingerprint="f", created_at=1.0)
        )  # fmt: skip
        session.flush()
        session.add(
            WebhookDelivery(id=f"{tenant}-told", tenant_id=tenant, webhook_id=f"{tenant}-hook",
                            event="job.ended", subject="j", state="delivered", created_at=1.0,
                            next_at=1.0)
        )  # fmt: skip
        session.merge(Attained(tenant_id=tenant, virtual_s=1.0))
        accept_bytes(session, Room(tenant, Settings(), {}), 100)
        large = {"kind": "plan", "hardware": {"name": f"of {tenant}", "levels": ["x" * 20_000]}}
        question, blob_id = put_aside(session, large)
        assert blob_id is not None
        session.add(
            Job(tenant_id=tenant, created_at=9.0, id=f"{tenant}-job-large", kind="plan",
                content_id="sha256:large", graph_id="sha256:shared", question=question,
                blob_id=blob_id, rung_at=0.0, state="done", request_id="r")
        )  # fmt: skip
        session.add(
            Assignment(id=f"{tenant}-part", tenant_id=tenant, launch_id=f"{tenant}-launch-0",
                       attempt=1, agent_id="gone", agent_name="gone", node_rank=0, slots=1,
                       state="done", token="secret-token", created_at=1.0)
        )  # fmt: skip
        token, _ = make_token(session, tenant, "", 600.0, uses=2)
        agent = enrol(session, token, None, name="n", inventory=INVENTORY, lease_s=30.0,
                      max_agents=9)  # fmt: skip
        assert isinstance(agent, Enrolled)
        session.add(Report(agent_id=agent.agent_id, id="report", received_at=1.0))
    return key


def rows_of(store: Database, tenant: str) -> dict[str, int]:
    with store.read() as session:
        counts = {}
        for table in tenant_tables():
            mine = select(func.count()).select_from(table).where(table.c.tenant_id == tenant)
            counts[table.name] = session.scalar(mine) or 0
        lines = select(func.count()).where(LogLine.text == f"a line of {tenant}")
        counts["launch_logs"] = session.scalar(lines) or 0
    return counts


def begin(store: Database, tenant: str) -> None:
    with store.write() as session:
        begin_deletion(session, session.get_one(Tenant, tenant), "ops")


def delete(store: Database, tenant: str) -> None:
    begin(store, tenant)
    for _ in range(100):
        if sweep_deletions(store, RULES, 0.0):
            return
    raise AssertionError(f"something is left: {rows_of(store, tenant)}")


def test_every_table_is_known_to_deletion_and_export() -> None:
    """A table that is added must say how its rows go, and whether they are exported."""
    named = {table.name for table in tenant_tables()}
    assert named | tenant_deletion.REACHED_OTHERWISE == set(METADATA.tables)
    exported = {noun.table.name for noun in NOUNS}
    assert exported | NOT_EXPORTED == named
    columns = {name: {column.name for column in METADATA.tables[name].c} for name in exported}
    for name in exported:
        secret = {c for c in columns[name] if c.endswith("_hash") or "token" in c or "secret" in c}
        assert secret - {"inventory_hash"} <= LEFT_OUT.get(name, set()), name


def test_a_deleted_tenant_leaves_nothing_and_others_keep_everything(store: Database) -> None:
    with store.write() as session:
        make_tenant(session, "ops")
    key, other = fill(store, "going"), fill(store, "staying")
    before = rows_of(store, "staying")
    assert all(rows_of(store, "going").values()), "nothing of some table was there to delete"
    begin(store, "going")
    with store.read() as session:
        assert principal_of(session, key) is None
        states = select(Job.state).where(Job.tenant_id == "going", ~Job.cancel_requested)
        assert set(session.scalars(states)) == {"done"}
    delete(store, "going")
    assert not any(rows_of(store, "going").values())
    assert rows_of(store, "staying") == before
    with store.read() as session:
        assert session.get(Tenant, "going") is None
        assert principal_of(session, other) is not None
        blobs = set(session.scalars(select(GraphBlob.id)))
        assert blobs == {"sha256:shared", *(f"sha256:staying{n}" for n in range(3))}
        audit = session.execute(select(Audit.action, Audit.target).where(Audit.tenant_id == "ops"))
        assert audit.all() == [("tenants.deleted", "/v1/tenants/going")]
        assert session.scalar(select(func.count()).select_from(Report)) == 1, "the other's"


def test_a_deletion_goes_on_after_a_crash_at_any_step(
    store: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step is one transaction; the process ends after every single one of them."""
    with store.write() as session:
        make_tenant(session, "ops")
    fill(store, "going", 5)
    monkeypatch.setattr(tenant_deletion, "ROWS_AT_ONCE", 2)
    monkeypatch.setattr(tenant_deletion, "LAUNCHES_AT_ONCE", 2)
    begin(store, "going")
    step = tenant_deletion._step
    steps = 0

    class Crash(Exception):
        pass

    def one(*arguments: Any) -> bool | None:
        nonlocal steps
        if steps_left:
            steps_left.pop()
            steps += 1
            return step(*arguments)
        raise Crash

    monkeypatch.setattr(tenant_deletion, "_step", one)
    sizes = [sum(rows_of(store, "going").values())]
    while sizes[-1] or _is_there(store, "going"):
        steps_left = [None]
        with contextlib.suppress(Crash):
            sweep_deletions(store, RULES, 0.0)
        sizes.append(sum(rows_of(store, "going").values()))
        assert steps < 200
    assert steps > 20
    # A batch, with what goes by cascade or with its agent, and no more.
    assert max(a - b for a, b in itertools.pairwise(sizes)) <= 3
    with store.read() as session:
        done = select(func.count()).where(Audit.action == "tenants.deleted")
        assert session.scalar(done) == 1


def _is_there(store: Database, tenant: str) -> bool:
    with store.read() as session:
        return session.get(Tenant, tenant) is not None


def test_the_tenants_row_waits_until_no_process_believes_its_keys(store: Database) -> None:
    fill(store, "going", 1)
    begin(store, "going")
    for _ in range(3):
        assert sweep_deletions(store, RULES, 3600.0) == []
    assert not any(rows_of(store, "going").values())
    assert _is_there(store, "going")
    assert sweep_deletions(store, RULES, 0.0) == ["going"]


def test_the_archive_has_all_of_a_tenant_and_no_secret(store: Database) -> None:
    key = fill(store, "mine")
    fill(store, "theirs")
    files = read_files(b"".join(tar_gz(tenant_files(store, "mine"), 1.0)))
    counts = json.loads(files["end.json"])["rows"]
    assert counts == {
        "graphs": 4, "hardware": 3, "jobs": 4, "results": 3, "points": 1, "watches": 1, "agents": 1,
        "launches": 3, "assignments": 1, "runs": 3, "audit": 3, "keys": 2, "logs": 3, "webhooks": 1,
    }  # fmt: skip
    assert json.loads(files["manifest.json"])["tenant"] == "mine"
    assert files["graphs/documents/sha256-mine2.json"] == b'{"of": "2"}'
    assert files["results/documents/sha256-c1.json"] == b'{"answer": 1}'
    jobs = [json.loads(line) for line in files["jobs/000001.jsonl"].splitlines()]
    assert [job["id"] for job in jobs] == [*(f"mine-job-{n}" for n in range(3)), "mine-job-large"]
    assert jobs[-1]["question"]["hardware"]["levels"] == ["x" * 20_000]
    assert b"a line of mine" in files["logs/mine-launch-0/000000001.jsonl"]
    whole = b"".join(files.values())
    with store.read() as session:
        hashes = session.scalars(select(METADATA.tables["keys"].c.secret_hash)).all()
    for secret in (
        key.split("_", 2)[2],
        "secret-lease",
        "secret-token",
        "secret-salt",
        "theirs",
        *hashes,
    ):
        assert secret.encode() not in whole


def test_the_archive_is_read_in_batches(store: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """No batch, and no file of lines, grows with the tenant."""
    with store.write() as session:
        make_tenant(session, "large")
        lines = [
            {"id": f"audit_{n:05}", "at": float(n), "tenant_id": "large", "key_id": None,
             "request_id": "r", "action": "a.b", "target": "x" * 100, "status": 200}
            for n in range(3000)
        ]  # fmt: skip
        session.execute(insert(Audit), lines)
    monkeypatch.setattr(tenant_export, "FILE_BYTES", 20_000)
    files = list(tenant_files(store, "large"))
    audit = [file for file in files if file.name.startswith("audit/")]
    assert max(len(file.content) for file in audit) < 21_000
    ids = [json.loads(line)["id"] for file in audit for line in file.content.splitlines()]
    assert ids == [f"audit_{n:05}" for n in range(3000)]


def test_the_archive_is_sent_while_it_is_made() -> None:
    """The first pieces come before the last files are read."""
    read = 0

    def files() -> Iterator[File]:
        nonlocal read
        for n in range(200):
            read += 1
            yield File(f"{n}", os.urandom(20_000))

    pieces = tar_gz(files(), 0.0)
    next(pieces)
    assert read < 30
    assert len(read_files(next(iter([b"".join(tar_gz([File("a", b"b")], 0.0))])))) == 1
