"""Database, broker and processes fail: every accepted job ends once, with the right answer."""

from __future__ import annotations

import secrets
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select

from harness.answers import curve
from harness.service.service_harness import (
    App,
    Postgres,
    Service,
    System,
    Valkey,
    fill,
    new_database,
    solver_pids,
    wait_until,
)
from harness.service.steps import HARDWARE, mlp, upload
from service.store.tables import Job, OwnedGraph, Result
from shardwise.answers import Options
from shardwise.capture import shipped_graph
from shardwise.graph import canonical_json, graph_id, read_graph
from shardwise.hardware import load_hardware

QUICK = {
    # Shorter than `SKEW_S`, and long for a worker that is slow because the machine is.
    "lease_s": "10",
    "heartbeat_s": "0.5",
    "sweep_s": "0.5",
    "ring_again_s": "1",
    "stop_grace_s": "0.3",
}
MOST = 7
SKEW_S = 60.0


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Postgres, Valkey]]:
    """A PostgreSQL and a Valkey of this module alone."""
    postgres, valkey = Postgres(tmp_path_factory.mktemp("postgres")), Valkey()
    postgres.start()
    valkey.start()
    yield postgres, valkey
    valkey.stop()
    postgres.stop()


@pytest.fixture(scope="module")
def shaken(
    servers: tuple[Postgres, Valkey], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[System]:
    postgres, valkey = servers
    with new_database(postgres.url()) as url:
        variables = {"database_url": url, "redis_url": valkey.url, **QUICK}
        system = System(tmp_path_factory.mktemp("shaken"), "postgres", variables)
        yield system
        system.stop()


@pytest.fixture(scope="module")
def right_answer() -> list[dict[str, Any]]:
    graph = read_graph(shipped_graph("gpt2"))
    return list(curve(graph, load_hardware("dgx-h100"), MOST, Options(overlap=False))["points"])


def long_question(gpus: int) -> dict[str, Any]:
    # The limit changes nothing but the question, of which no other test makes counts known.
    options = {"overlap": False, "max_configurations": 200 + gpus}
    return {"graph": "shipped:gpt2", "hardware": "dgx-h100", "max_gpus": gpus, "options": options}


def in_mid_solve(system: System, gpus: int) -> str:
    """The location of a job that is being computed."""
    answer = system.client.post("/v1/curves", json=long_question(gpus))
    assert answer.status_code == 202, answer.text
    wait_until(lambda: solver_pids(system), "a child computes")
    return str(answer.headers["Location"])


def counts(system: System, content_id: str) -> tuple[int, int]:
    """Rows of jobs and of results that one question has."""
    database = system.database()
    with database.read() as session:
        jobs = select(func.count()).select_from(Job).where(Job.content_id == content_id)
        results = select(func.count()).select_from(Result).where(Result.content_id == content_id)
        rows = int(session.scalar(jobs) or 0), int(session.scalar(results) or 0)
    database.close()
    return rows


def content_of(system: System, location: str) -> str:
    database = system.database()
    with database.read() as session:
        content_id = session.get_one(Job, location.rpartition("/")[2]).content_id
    database.close()
    return str(content_id)


def require_one_right(system: System, location: str, points: Any, attempts: int = 2) -> None:
    job = system.service.ended(location)
    assert job["state"] == "done", job
    assert 1 <= job["attempts"] <= attempts
    assert job["result"]["points"] == points
    assert counts(system, content_of(system, location)) == (1, 1)


def test_the_broker_killed_in_mid_solve(
    shaken: System, servers: tuple[Postgres, Valkey], right_answer: Any
) -> None:
    valkey = servers[1]
    location = in_mid_solve(shaken, MOST)
    valkey.stop(signal.SIGKILL)
    meanwhile = shaken.client.post("/v1/curves", json=long_question(MOST - 1))
    assert meanwhile.status_code == 202, "a job is taken without the broker"
    valkey.start()
    require_one_right(shaken, location, right_answer, attempts=1)
    require_one_right(shaken, meanwhile.headers["Location"], right_answer[: MOST - 1], attempts=1)


def test_postgresql_restarted_in_mid_solve(
    shaken: System, servers: tuple[Postgres, Valkey], right_answer: Any
) -> None:
    postgres = servers[0]
    location = in_mid_solve(shaken, MOST - 2)
    postgres.stop(signal.SIGQUIT)
    answer = shaken.client.get(location)
    assert answer.status_code == 503
    assert answer.json()["type"].endswith("unavailable")
    postgres.start()
    wait_until(lambda: shaken.client.get("/readyz").status_code == 200, "it is ready again")
    require_one_right(shaken, location, right_answer[: MOST - 2])


def test_the_service_killed_in_mid_request(shaken: System) -> None:
    """Accepted or not, never half; the same Idempotency-Key again gives one job each."""
    graph = upload(shaken.service, mlp())
    numbers = count()
    bodies: dict[int, dict[str, Any]] = {}
    answered: dict[int, str] = {}
    some = threading.Semaphore(0)
    url = shaken.service.url

    def ask_until_killed() -> None:
        for n in numbers:
            assert n < 900, "it was never killed"
            options = {"overlap": False, "epsilon": 0.05 + n / 1000}
            bodies[n] = {"graph": graph, "hardware": HARDWARE, "gpus": 1, "options": options}
            headers = {"Idempotency-Key": f"k{n}"}
            try:
                answer = httpx.post(
                    f"{url}/v1/frontiers", json=bodies[n], headers=headers, timeout=60
                )
            except httpx.TransportError:
                return
            if answer.status_code == 202:
                answered[n] = answer.json()["id"]
                some.release()

    with ThreadPoolExecutor(8) as pool:
        asking = [pool.submit(ask_until_killed) for _ in range(8)]
        assert some.acquire(timeout=30)
        shaken.service.kill()
        for one in asking:
            one.result()
    assert 1 <= len(answered) < len(bodies), "it was killed between two answers"
    shaken.restart_service()
    for n, body in bodies.items():
        again = shaken.client.post("/v1/frontiers", json=body, headers={"Idempotency-Key": f"k{n}"})
        assert again.status_code == 202, again.text
        assert answered.setdefault(n, again.json()["id"]) == again.json()["id"]
    assert len(set(answered.values())) == len(bodies)
    for job_id in answered.values():
        job = shaken.service.ended(f"/v1/frontiers/{job_id}")
        assert (job["state"], job["attempts"]) == ("done", 1)
        assert counts(shaken, content_of(shaken, job_id)) == (1, 1)


def skewed(folder: Path, seconds: float) -> type[App]:
    """Returns an App whose Python clock is off; each process leaves a file that proves it."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(
        "import os, time\n"
        "real, real_ns = time.time, time.time_ns\n"
        f"time.time = lambda: real() + {seconds}\n"
        f"time.time_ns = lambda: real_ns() + int({seconds} * 10**9)\n"
        f"open(os.path.join({str(folder)!r}, f'skewed-{{os.getpid()}}'), 'w').close()\n"
    )

    class Skewed(App):
        python_path = (str(folder), *App.python_path)

    return Skewed


def test_two_services_and_skewed_workers_race_for_one_job(
    shaken: System, tmp_path: Path, right_answer: Any
) -> None:
    """Workers a minute ahead and a minute behind, leases of ten seconds: none steals."""
    for worker in shaken.living_workers():
        worker.stop()
    programs = [skewed(tmp_path / name, s) for name, s in (("ahead", SKEW_S), ("behind", -SKEW_S))]
    shaken.workers += [kind(shaken.folder, "worker", **shaken.variables) for kind in programs]
    other = Service(shaken.folder, **shaken.variables)
    body = long_question(MOST - 3)

    def ask(n: int) -> str:
        answer = (shaken.client, other.client)[n % 2].post("/v1/curves", json=body)
        assert answer.status_code == 202, answer.text
        return str(answer.headers["Location"])

    with ThreadPoolExecutor(8) as pool:
        locations = set(pool.map(ask, range(40)))
    assert len(locations) == 1
    require_one_right(shaken, locations.pop(), right_answer[: MOST - 3], attempts=1)
    for name in ("ahead", "behind"):
        assert any((tmp_path / name).glob("skewed-*")), "its clock was off"
    other.stop()


def test_a_full_disk_under_sqlite(small_disk: Path, tmp_path: Path) -> None:
    variables = {"database_url": f"sqlite:///{small_disk / 'a.sqlite'}", **QUICK}
    system = System(tmp_path, "embedded", variables)
    system.client.post("/v1/graphs", content=canonical_json(mlp(16, "before")))
    filler = small_disk / "filler"
    fill(filler)
    refused = None
    stored = 1
    for n in range(200):
        answer = system.client.post("/v1/graphs", content=canonical_json(mlp(16, f"g{n}")))
        if answer.status_code != 201:
            refused = answer
            break
        stored += 1
    assert refused is not None, "the disk was full"
    assert refused.status_code in (503, 507), refused.text
    assert refused.headers["Content-Type"] == "application/problem+json"
    assert "full" in refused.json()["detail"]
    assert system.client.get("/healthz").status_code == 200
    filler.unlink()
    question = {"graph": graph_id(mlp(16, "before")), "hardware": HARDWARE, "gpus": 2}
    until = time.monotonic() + 30
    while (answer := system.client.post("/v1/frontiers", json=question)).status_code == 503:
        assert time.monotonic() < until, answer.text
        time.sleep(0.2)
    assert system.service.ended(answer.headers["Location"])["state"] == "done"
    again = system.client.post("/v1/graphs", content=refused.request.content)
    assert again.status_code == 201, "what was refused was not half stored"
    database = system.database()
    with database.read() as session:
        # `stored`, and the one sent again.
        assert session.scalar(select(func.count()).select_from(OwnedGraph)) == stored + 1
    database.close()
    system.stop()


@pytest.mark.parametrize("small_disk", ["48m"], indirect=True)
def test_deletes_make_room_on_a_full_disk(small_disk: Path, tmp_path: Path) -> None:
    variables = {"database_url": f"sqlite:///{small_disk / 'a.sqlite'}", **QUICK}
    system = System(tmp_path, "embedded", variables)
    client = system.client
    graphs = [canonical_json(mlp(16, secrets.token_hex(8000))) for _ in range(60)]
    stored = [client.post("/v1/graphs", content=graph).json()["id"] for graph in graphs[:20]]
    assert client.get("/readyz").json()["checks"]["writes"] == "ok"
    fill(small_disk / "filler")
    answers = [client.post("/v1/graphs", content=graph).status_code for graph in graphs[20:]]
    assert {503, 507} & set(answers), answers
    wait_until(lambda: client.get("/readyz").status_code == 503, "it is not ready")
    assert client.get("/readyz").json()["checks"]["writes"] == "full"
    assert client.get("/readyz?for=reading").status_code == 200
    for graph in stored:
        answer = client.delete(f"/v1/graphs/{graph}")
        assert answer.status_code == 204, answer.text
    last = graphs[-1]
    wait_until(lambda: client.post("/v1/graphs", content=last).is_success, "there is room again")
    system.stop()
