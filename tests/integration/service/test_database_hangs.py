"""A database that says nothing: stopped, behind a network that swallows, or locked."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any

import httpx
import pytest

from harness.service.service_harness import (
    Postgres,
    Service,
    System,
    descendants,
    new_database,
    wait_until,
)
from harness.service.steps import HARDWARE, mlp
from shardwise.graph import canonical_json

DEADLINE_S = 1.0
UPLOADS = 14
"""As many as one tenant may have in work, nearly."""

SOON_S = 20.0
"""Generous for a loaded machine, and far less than for ever."""


class Wire(threading.Thread):
    """Forwards TCP connections to a port; while `cut` is set it accepts and passes on nothing."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._to = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self.open = threading.Event()
        self.open.set()

    def run(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        self.open.wait()
        far = socket.create_connection(("127.0.0.1", self._to))
        for source, sink in ((near, far), (far, near)):
            threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(2**16):
                self.open.wait()
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.open.set()
        self._listening.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """A PostgreSQL of this module alone."""
    postgres = Postgres(tmp_path_factory.mktemp("postgres"))
    postgres.start()
    yield postgres
    postgres.stop()


@pytest.fixture(scope="module")
def wire(server: Postgres) -> Iterator[Wire]:
    proxy = Wire(server.port)
    proxy.start()
    yield proxy
    proxy.close()


@pytest.fixture(scope="module")
def system(
    server: Postgres, wire: Wire, redis_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[System]:
    with new_database(server.url()) as url:
        through = url.replace(f":{server.port}/", f":{wire.port}/")
        variables = {
            "database_url": through,
            "redis_url": redis_url,
            "database_s": str(DEADLINE_S),
            "sweep_s": "0.5",
        }
        started = System(tmp_path_factory.mktemp("hanging"), "postgres", variables)
        yield started
        started.stop()


@contextmanager
def stopped(server: Postgres) -> Iterator[None]:
    """Stops all processes of PostgreSQL; their kernel goes on acknowledging."""
    assert server._process is not None
    pids = [server._process.pid, *descendants(server._process.pid)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


@contextmanager
def cut(wire: Wire) -> Iterator[None]:
    wire.open.clear()
    try:
        yield
    finally:
        wire.open.set()


def timed(client: httpx.Client, method: str, path: str, **keywords: Any) -> tuple[int, float]:
    started = monotonic()
    answer = client.request(method, path, **keywords)
    if answer.status_code == 503 and path.startswith("/v1"):
        assert answer.json()["type"].endswith(":unavailable")
        assert "Retry-After" in answer.headers
    return answer.status_code, monotonic() - started


@pytest.mark.parametrize("how", ["stopped", "cut"])
def test_a_database_that_says_nothing(
    system: System, server: Postgres, wire: Wire, how: str
) -> None:
    client = system.client
    graph = client.post("/v1/graphs", content=canonical_json(mlp(16))).json()["id"]
    curve = f"/v1/curves?graph={graph}&hardware={HARDWARE}&max_gpus=1"
    wait_until(lambda: client.get(curve).status_code == 200, "a curve is known")
    hanging = stopped(server) if how == "stopped" else cut(wire)
    with hanging, ThreadPoolExecutor(60) as pool:
        calls = [
            pool.submit(timed, client, "POST", "/v1/graphs", content=canonical_json(mlp(8 + n)))
            for n in range(UPLOADS)
        ]
        calls += [pool.submit(timed, client, "GET", "/v1/graphs") for _ in range(25)]
        for status, seconds in (timed(client, "GET", "/readyz") for _ in range(5)):
            assert status == 503
            assert seconds < SOON_S
        assert client.get("/readyz").json()["checks"]["database"] == "unavailable"
        assert timed(client, "GET", "/healthz")[0] == 200
        assert "shardwise_database_up 0.0" in client.get("/metrics").text
        for call in calls:
            status, seconds = call.result(timeout=120)
            assert status == 503
            assert seconds < SOON_S
        assert timed(client, "GET", curve)[0] == 200, "what is known is answered on"
        assert timed(client, "GET", "/v1/graphs")[0] == 503
    wait_until(lambda: client.get("/readyz").status_code == 200, "it is ready again")
    graph = canonical_json(mlp(100, how))
    # Calls have connections of their own, which may notice a second after the probes'.
    wait_until(lambda: client.post("/v1/graphs", content=graph).is_success, "calls are taken again")
    new = client.post("/v1/graphs", content=graph)
    asked = client.post(
        "/v1/curves", json={"graph": new.json()["id"], "hardware": HARDWARE, "max_gpus": 1}
    )
    assert system.service.ended(asked.headers["Location"])["state"] == "done", "the worker too"


def test_a_statement_that_takes_long_is_ended_by_the_server(system: System) -> None:
    """Locked rows: only the caller gets an error, and the service stays ready."""
    import psycopg

    url = system.variables["database_url"]
    with psycopg.connect(url) as other:
        other.execute("LOCK TABLE graphs IN ACCESS EXCLUSIVE MODE")
        status, seconds = timed(system.client, "GET", "/v1/graphs")
        assert status == 503
        assert seconds < SOON_S
        assert system.client.get("/v1/hardware").status_code == 200
        assert system.client.get("/readyz").status_code == 200
    assert system.client.get("/v1/graphs").status_code == 200


def test_migrations_and_backups_have_no_deadline(server: Postgres) -> None:
    from sqlalchemy import text

    from service.base.store_failures import StoreUnavailable
    from service.store.database import Database

    with new_database(server.url()) as url:
        url = url.replace("postgresql://", "postgresql+psycopg://")
        pause = text(f"SELECT pg_sleep({2 * DEADLINE_S})")
        with closing(Database(url)) as patient, patient.read() as session:
            session.execute(pause)
        with (
            closing(Database(url, deadline_s=DEADLINE_S)) as hasty,
            pytest.raises(StoreUnavailable, match="statement timeout"),
            hasty.read() as session,
        ):
            session.execute(pause)


def test_a_lock_of_sqlite_that_another_process_holds(tmp_path: Path) -> None:
    service = Service(tmp_path, database_s=str(DEADLINE_S))
    client = service.client
    assert client.post("/v1/graphs", content=canonical_json(mlp(16))).status_code == 201
    other = sqlite3.connect(tmp_path / "data" / "shardwise.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with ThreadPoolExecutor(30) as pool:
        calls = [
            pool.submit(timed, client, "POST", "/v1/graphs", content=canonical_json(mlp(8 + n)))
            for n in range(UPLOADS)
        ]
        while not all(call.done() for call in calls):
            assert client.get("/v1/graphs").status_code == 200
            ready = client.get("/readyz")
            assert ready.status_code == 200, ready.text
            assert client.get("/healthz").status_code == 200
        assert {call.result()[0] for call in calls} == {503}
    other.execute("ROLLBACK")
    other.close()
    assert client.post("/v1/graphs", content=canonical_json(mlp(64))).status_code == 201
    service.stop()
