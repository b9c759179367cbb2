"""PostgreSQL on a full disk, and a broker that refuses writes: no accepted job is lost."""

from __future__ import annotations

import secrets
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis

from harness.service.service_harness import (
    App,
    Postgres,
    System,
    Valkey,
    fill,
    new_database,
    wait_until,
)
from harness.service.steps import mlp
from service.store.tables import ENDED
from shardwise.graph import canonical_json

LEASE_S = 3
QUICK = {
    "lease_s": str(LEASE_S),
    "heartbeat_s": "0.5",
    "sweep_s": "0.5",
    "ring_again_s": "1",
    "stop_grace_s": "0.3",
    "concurrency": "1",
}
NOTICED_S = 30.0
"""/readyz tries a write every five seconds, and answers within two."""

WELL_AGAIN_S = 30.0
"""A full disk is believed to have room ten seconds after it last had none."""

CANNOT_CONNECT = "Cannot connect to redis"
WRITE_LOG = "SELECT pg_logical_emit_message(false, '', repeat('x', 1048576))"

REFUSALS = {"memory": ("maxmemory", "1"), "replicas": ("min-replicas-to-write", "1")}
"""Settings of Valkey whose default is 0, and the value by which it refuses writes."""


@contextmanager
def serving(folder: Path, wal: Path | None = None) -> Iterator[Postgres]:
    """A PostgreSQL of this module alone."""
    postgres = Postgres(folder, wal)
    postgres.start()
    try:
        yield postgres
    finally:
        postgres.stop()


@contextmanager
def started(folder: Path, server: str, valkey: Valkey, **more: str) -> Iterator[System]:
    """A system on these servers, with a database of its own."""
    with new_database(server) as url:
        variables = {"database_url": url, "redis_url": valkey.url, **QUICK, **more}
        system = System(folder, "postgres", variables)
        try:
            wait_until(lambda: checks(system)["workers"] == 1, "the worker lives")
            yield system
        finally:
            system.stop()


@pytest.fixture(scope="module")
def valkey() -> Iterator[Valkey]:
    """A Valkey of this module alone."""
    server = Valkey()
    server.start()
    yield server
    server.stop()


def ask(system: System, number: int) -> str:
    """The location of a job for a question of this number."""
    options = {"epsilon": 0.05 + number / 1000}
    graph = system.client.post("/v1/graphs", content=canonical_json(mlp())).json()["id"]
    body = {"graph": graph, "hardware": "dgx-v100-16gb", "gpus": 2, "options": options}
    answer = system.client.post("/v1/frontiers", json=body)
    assert answer.status_code == 202, answer.text
    return str(answer.headers["Location"])


def ask_nobody(system: System, number: int) -> list[str]:
    """Stops the worker and asks the given number of questions."""
    system.workers.pop().stop()
    return [ask(system, n) for n in range(number)]


@contextmanager
def filled(disk: Path) -> Iterator[None]:
    """With no space left there."""
    filler = disk / "filler"
    fill(filler)
    try:
        yield
    finally:
        filler.unlink()


def checks(system: System) -> dict[str, Any]:
    states: dict[str, Any] = system.client.get("/readyz").json()["checks"]
    return states


def large_graph() -> bytes:
    return canonical_json(mlp(16, secrets.token_hex(8000)))


def require_done(system: System, locations: list[str], attempts: int = 1) -> None:
    for location in locations:
        job = system.service.ended(location)
        assert job["state"] == "done", job
        assert 1 <= job["attempts"] <= attempts


def require_no_traceback(system: System) -> None:
    for app in (system.service, *system.workers):
        assert "Traceback" not in app.log.read_text()


@pytest.mark.parametrize("small_disk", ["64m"], indirect=True)
def test_postgresql_on_a_full_disk(small_disk: Path, tmp_path: Path, valkey: Valkey) -> None:
    """Its log lies elsewhere, as the runbook asks for, so that deletes go on."""
    with (
        serving(small_disk / "data", tmp_path / "wal") as postgres,
        started(tmp_path, postgres.url(), valkey, max_attempts="2") as system,
    ):
        client = system.client
        stored = [client.post("/v1/graphs", content=large_graph()).json()["id"] for _ in range(5)]
        [asked] = ask_nobody(system, 1)
        with filled(small_disk):
            refused = [client.post("/v1/graphs", content=large_graph()) for _ in range(20)][-1]
            assert refused.status_code == 503, refused.text
            assert refused.headers["Content-Type"] == "application/problem+json"
            assert refused.json()["detail"] == "the database's disk is full: nothing was stored"
            wait_until(lambda: checks(system)["writes"] == "full", "it shows", NOTICED_S)
            assert client.get("/readyz").status_code == 503
            assert client.get("/readyz?for=reading").status_code == 200
            assert client.get(f"/v1/graphs/{stored[0]}").status_code == 200
            require_kept(system, asked)
            for graph in stored:
                answer = client.delete(f"/v1/graphs/{graph}")
                assert answer.status_code == 204, answer.text
        wait_until(lambda: client.get("/readyz").status_code == 200, "ready again", WELL_AGAIN_S)
        again = client.post("/v1/graphs", content=refused.request.content)
        assert again.status_code == 201, "what was refused was not half stored"
        # Where a row needs another page its lease cannot be renewed: it is computed again.
        require_done(system, [asked], attempts=2)
        known = {graph["id"] for graph in client.get("/v1/graphs?limit=200").json()["items"]}
        assert again.json()["id"] in known
        assert not known & set(stored)
        require_no_traceback(system)


def require_kept(system: System, location: str) -> None:
    """Two workers and no room for the answer: one keeps it, the other does not take the job.

    Updates find room within their pages, so that leases can be taken where answers cannot be kept.
    """
    for _ in range(2):
        system.start_worker()
    wait_until(
        lambda: sum(map(times_late, system.workers)) > 2 * LEASE_S or ended(system, location),
        "the answer has waited for longer than the lease of its one attempt",
        180.0,
    )
    job = system.client.get(location).json()
    assert (job["state"], job["attempts"]) == ("running", 1), job


def ended(system: System, location: str) -> bool:
    return system.client.get(location).json()["state"] in ENDED


def times_late(worker: App) -> int:
    """How often it tried in vain to record an answer: about once a second."""
    return len(worker.logged("cannot be recorded yet"))


@pytest.mark.parametrize("small_disk", ["96m"], indirect=True)
def test_a_full_disk_under_postgresqls_log(
    small_disk: Path, tmp_path: Path, valkey: Valkey
) -> None:
    """PostgreSQL ends when its log has no room; what was accepted is there when it is back."""
    with (
        serving(small_disk / "data") as postgres,
        started(tmp_path, postgres.url(), valkey) as system,
    ):
        client = system.client
        asked = ask_nobody(system, 3)
        with filled(small_disk):
            system.start_worker()
            wait_until(lambda: times_late(system.workers[0]), "an answer waits")
            with pytest.raises(psycopg.OperationalError), psycopg.connect(postgres.url()) as link:
                for _ in range(64):
                    link.execute(WRITE_LOG)
            wait_until(lambda: client.get(asked[0]).status_code == 503, "PostgreSQL has ended")
            answer = client.post("/v1/graphs", content=large_graph())
            assert answer.status_code == 503
            assert answer.json()["type"].endswith(":unavailable")
            assert checks(system)["database"] == "unavailable"
        postgres.stop(signal.SIGQUIT)
        postgres.start()
        wait_until(lambda: client.get("/readyz").status_code == 200, "ready again", WELL_AGAIN_S)
        require_done(system, asked, attempts=2)
        assert client.post("/v1/graphs", content=large_graph()).status_code == 201
        require_no_traceback(system)


@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_broker_that_refuses_writes(
    postgres_url: str, valkey: Valkey, tmp_path: Path, refusal: str
) -> None:
    """Workers live on, new ones join, and once it takes writes again rings are heard."""
    setting, refusing = REFUSALS[refusal]
    with (
        redis.Redis.from_url(valkey.url) as admin,
        started(tmp_path, postgres_url, valkey) as system,
    ):
        try:
            require_done(system, [ask(system, 0)])
            admin.config_set(setting, refusing)
            wait_until(lambda: checks(system)["broker"] == "refuses writes", "it shows", NOTICED_S)
            assert system.client.get("/readyz").status_code == 200, "questions are taken"
            system.start_worker()
            require_done(system, [ask(system, number) for number in range(1, 5)])
            wait_until(lambda: system.workers[-1].logged(CANNOT_CONNECT), "the new one met it")
            assert len(system.living_workers()) == 2
        finally:
            admin.config_set(setting, "0")
        wait_until(lambda: checks(system)["broker"] == "ok", "it shows again", NOTICED_S)
        system.workers.pop(0).stop()
        require_done(system, [ask(system, 5)])
        wait_until(lambda: not admin.llen(system.variables["queue"]), "rings are heard")
