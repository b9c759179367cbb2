"""Jobs outlive the processes that compute them: killed workers and services, cancels, limits."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from harness.answers import curve
from harness.service.service_harness import (
    App,
    Service,
    System,
    alive,
    descendants,
    solver_pids,
    wait_until,
)
from harness.service.steps import mlp, upload
from service.store import keys
from shardwise.answers import Options
from shardwise.capture import shipped_graph
from shardwise.graph import graph_id, read_graph
from shardwise.hardware import load_hardware

LONG = {
    "graph": "shipped:gpt2", "hardware": "dgx-h100", "max_gpus": 9, "options": {"overlap": False}
}  # fmt: skip
"""Some seconds of work, in steps that tell of progress."""

LARGE = {"graph": "shipped:llama-8b", "hardware": "dgx-h100", "gpus": 64}
SMALL = {"graph": graph_id(mlp()), "hardware": "dgx-v100-16gb"}
FOREVER = {"graph": "shipped:llama-8b", "hardware": "dgx-h100", "max_gpus": 1000}


def start(system: System, body: dict[str, Any], path: str = "/v1/curves") -> str:
    answer = system.client.post(path, json=body)
    assert answer.status_code == 202, answer.text
    return str(answer.headers["Location"])


def running(system: System, location: str) -> dict[str, Any]:
    """The job once it is being computed."""

    def running_job() -> dict[str, Any] | None:
        job = system.client.get(location).json()
        return job if job["state"] == "running" and solver_pids(system) else None

    document: dict[str, Any] = wait_until(running_job, "the job is running")
    return document


@pytest.fixture(scope="module")
def right_answer() -> list[dict[str, Any]]:
    graph = read_graph(shipped_graph("gpt2"))
    answer = curve(graph, load_hardware("dgx-h100"), 9, Options(overlap=False))
    return list(answer["points"])


def test_a_worker_killed_in_mid_solve(own_system: System, right_answer: Any) -> None:
    location = start(own_system, LONG)
    running(own_system, location)
    solvers, workers = solver_pids(own_system), own_system.worker_pids()
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(map(alive, solvers)), "its child has ended with it")
    if own_system.kind != "embedded":  # there the service starts another by itself
        own_system.start_worker()
    job = own_system.service.ended(location)
    assert (job["state"], job["attempts"]) == ("done", 2)
    assert job["result"]["points"] == right_answer


def test_the_service_killed_and_started_again(own_system: System, right_answer: Any) -> None:
    # Counts of the question above are known, this limit changes nothing but the question.
    options = {"overlap": False, "max_configurations": 201}
    location = start(own_system, {**LONG, "options": options})
    running(own_system, location)
    below = descendants(own_system.service.pid)
    own_system.service.kill()
    wait_until(lambda: not any(map(alive, below)), "no process is left behind")
    own_system.restart_service()
    job = own_system.service.ended(location)
    assert job["state"] == "done"
    assert job["result"]["points"] == right_answer
    jobs = own_system.client.get("/v1/jobs", params={"kind": "curve"}).json()["items"]
    asked = [j["id"] for j in jobs if j["question"]["options"]["max_configurations"] == 201]
    assert asked == [job["id"]]


def test_a_stop_in_order_gives_the_job_back(own_system: System) -> None:
    location = start(own_system, FOREVER)
    running(own_system, location)
    below = descendants(own_system.service.pid)
    if own_system.kind == "embedded":
        assert own_system.service.stop() == 0
        assert not any(map(alive, below))
        own_system.restart_service()
    else:
        assert own_system.living_workers()[0].stop() == 0
        wait_until(
            lambda: own_system.client.get(location).json()["state"] == "queued", "it is queued"
        )
        assert own_system.client.get(location).json()["attempts"] == 0
        own_system.start_worker()
    job = running(own_system, location)
    assert job["attempts"] == 1, "a stop in order uses up no attempt"
    assert own_system.client.delete(location).status_code == 200
    assert own_system.service.ended(location)["state"] == "cancelled"


def test_a_running_job_is_cancelled(own_system: System) -> None:
    location = start(own_system, FOREVER)
    running(own_system, location)
    answer = own_system.client.delete(location)
    assert answer.json()["cancel_requested"] is True
    job = own_system.service.ended(location, 15)
    assert job["state"] == "cancelled"
    wait_until(lambda: not solver_pids(own_system), "the child has ended")
    again = own_system.client.delete(location)
    assert again.status_code == 200
    assert again.json()["state"] == "cancelled"
    fresh = own_system.client.post("/v1/curves", json=FOREVER)
    assert fresh.status_code == 202
    assert fresh.json()["id"] != job["id"]
    own_system.client.delete(fresh.headers["Location"])
    assert own_system.service.ended(fresh.headers["Location"], 15)["state"] == "cancelled"


def test_a_job_that_kills_its_worker_three_times_fails(own_system: System) -> None:
    wait_until(lambda: not solver_pids(own_system), "nothing else is computed")
    # Of another question some counts may be known already, with which it would end.
    location = start(own_system, {**FOREVER, "options": {"epsilon": 0.02}})
    seen: set[int] = set()
    for _ in range(3):
        pids = wait_until(
            lambda: [p for p in solver_pids(own_system) if p not in seen], "a child computes"
        )
        seen.update(pids)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
    job = own_system.service.ended(location)
    assert (job["state"], job["attempts"]) == ("failed", 3)
    assert job["error"]["type"].endswith("worker-lost")
    asked = {**FOREVER, "max_gpus": str(FOREVER["max_gpus"]), "epsilon": "0.02"}
    polled = own_system.client.get("/v1/curves", params=asked)
    assert polled.status_code == 422, "polling reports the failure and makes no new job"
    assert polled.json()["job"]["id"] == job["id"]


def test_a_queued_job_is_cancelled_and_never_computed(own_system: System) -> None:
    busy = start(own_system, FOREVER)
    running(own_system, busy)
    waiting = start(own_system, {**FOREVER, "max_gpus": 999})
    # One worker with one slot computes the other; no slot is free for this.
    answer = own_system.client.delete(waiting)
    assert answer.json()["state"] == "cancelled"
    assert answer.json()["started_at"] is None
    own_system.client.delete(busy)
    assert own_system.service.ended(busy, 15)["state"] == "cancelled"


def test_time_and_memory_of_a_solve_are_bounded(own_system: System) -> None:
    """By a tenant's own limits, set while the service runs."""
    set_limit(own_system, "solve_time_s", 1.0)
    # With counts that another question knows it would end as done.
    unknown = {**FOREVER, "options": {"epsilon": 0.03}}
    job = own_system.service.ended(start(own_system, unknown))
    assert job["error"]["type"].endswith("time-limit")
    set_limit(own_system, "solve_time_s")
    set_limit(own_system, "solve_memory_bytes", 64 * 2.0**20)
    large = {**LARGE, "options": {"overlap": False}}
    job = own_system.service.ended(start(own_system, large, "/v1/frontiers"))
    assert job["state"] == "failed"
    assert job["error"]["type"].endswith("memory-limit"), job["error"]
    set_limit(own_system, "solve_memory_bytes")


def set_limit(system: System, name: str, value: float | None = None) -> None:
    with system.database().write() as session:
        keys.set_limit(session, "local", name, value)


@pytest.mark.parametrize("backend", ["embedded"], indirect=True)
def test_one_folder_is_one_services(own_system: System) -> None:
    second = App(
        own_system.folder, "serve", "--port", "0", data_dir=str(own_system.folder / "data")
    )
    assert second.process.wait(30) == 2
    text = second.log.read_text()
    assert "another service uses this folder" in text
    assert own_system.service.url in text
    second.stop()
    taken = own_system.service.url.rpartition(":")[2]
    other = str(own_system.folder / "other")
    third = App(own_system.folder, "serve", "--port", taken, data_dir=other)
    assert third.process.wait(30) == 2
    assert f"port {taken} of 127.0.0.1 is taken" in third.log.read_text()
    third.stop()


def test_two_services_and_two_workers_share_the_work(own_system: System) -> None:
    if own_system.kind == "embedded":
        pytest.skip("an embedded service is one")
    upload(own_system.service, mlp())
    other = Service(own_system.folder, **own_system.variables)
    own_system.start_worker()
    ids = set()
    for number in range(6):
        body = {**SMALL, "gpus": 1 + number // 2}
        client = (own_system.client, other.client)[number % 2]
        answer = client.post("/v1/frontiers", json=body)
        ids.add(answer.json()["location"])
    assert len(ids) == 3, "both ask the same three questions"
    for location in ids:
        job = other.ended(location)
        assert (job["state"], job["attempts"]) == ("done", 1)
    other.stop()


def test_rings_that_are_lost_are_rung_again(own_system: System, redis_url: str) -> None:
    """Nothing in the broker, as after its restart: the sweeper finds the rows."""
    if own_system.kind == "embedded":
        pytest.skip("the embedded broker is not shared")
    import redis

    upload(own_system.service, mlp())
    for worker in own_system.living_workers():
        worker.stop()
    location = start(own_system, {**SMALL, "gpus": 8}, "/v1/frontiers")
    with redis.Redis.from_url(redis_url) as broker:
        assert broker.delete(own_system.variables["queue"]) == 1
    own_system.start_worker()
    assert own_system.service.ended(location)["state"] == "done"
