"""A job's place in the queue, over HTTP; what cannot be computed is refused when it is asked."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from harness import answers
from harness.service.service_harness import Service, System, wait_until
from shardwise.answers import Options
from shardwise.capture import shipped_graph
from shardwise.client import Client
from shardwise.cost.pins import parse_pin
from shardwise.errors import BadInput
from shardwise.graph import read_graph
from shardwise.hardware import load_hardware

HARDWARE = "dgx-v100-16gb*1"
FOREVER = {"graph": "shipped:llama-8b", "hardware": "dgx-h100", "max_gpus": 1000}
PLAN = {"graph": "shipped:vgg16", "hardware": HARDWARE, "gpus": 1}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """With a worker of one slot, which a long curve keeps busy."""
    folder = tmp_path_factory.mktemp("queue")
    started = Service(folder, concurrency="1", heartbeat_s="0.5", stop_grace_s="0.3")
    busy = started.client.post("/v1/curves", json=FOREVER).headers["Location"]
    wait_until(lambda: started.client.get(busy).json()["state"] == "running", "the slot is taken")
    yield started
    started.client.delete(busy)
    started.stop()


def posted(service: Service, path: str = "/v1/plans", **changes: Any) -> dict[str, Any]:
    answer = service.client.post(path, json={**PLAN, **changes})
    assert answer.status_code == 202, answer.text
    job: dict[str, Any] = answer.json()
    return job


def jobs_of(service: Service) -> list[str]:
    return [job["id"] for job in service.client.get("/v1/jobs").json()["items"]]


def seen(service: Service, job: dict[str, Any], code: str) -> dict[str, Any]:
    """The member `queue` of a job, once it names this reason."""

    def waiting() -> Any:
        queue = service.client.get(job["location"]).json()["queue"]
        return queue if queue is not None and queue["code"] == code else None

    document: dict[str, Any] = wait_until(waiting, f"{job['id']} waits for {code}")
    return document


def test_a_job_reports_its_place_in_the_queue(service: Service) -> None:
    first = posted(service, gpus=1)
    second = posted(service, gpus=2)
    third = posted(service, gpus=4, priority=7)
    assert (first["priority"], third["priority"]) == (0, 7)
    of_third = seen(service, third, "slot")
    of_first = seen(service, first, "own-priority")
    of_second = seen(service, second, "own-priority")
    assert [q["place"] for q in (of_third, of_first, of_second)] == [1, 2, 3]
    assert all(q["of"] >= 3 for q in (of_first, of_second))
    assert of_first["waits_for"] == "1 of your own jobs with a higher priority"
    times = [datetime.fromisoformat(of_second[name]) for name in ("starts_at", "ends_at")]
    assert times[0] <= times[1]
    assert times[0] >= datetime.fromisoformat(of_third["starts_at"])
    (running,) = service.client.get("/v1/jobs", params={"state": "running"}).json()["items"]
    queue = seen(service, running, "running")
    assert queue["place"] is None and queue["starts_at"] == running["started_at"]
    for job in (first, second, third):
        ended = service.client.delete(job["location"]).json()
        assert (ended["state"], ended["queue"]) == ("cancelled", None)


def test_a_short_question_is_answered_while_long_ones_run(system: System) -> None:
    """By default a worker has two slots, of which one is for short jobs."""
    long = [
        system.client.post("/v1/curves", json={**FOREVER, "max_gpus": gpus}).headers["Location"]
        for gpus in (998, 997)
    ]
    wait_until(
        lambda: any(system.client.get(at).json()["state"] == "running" for at in long),
        "a long one runs",
    )
    short = system.client.post("/v1/plans", json={**PLAN, "options": {"max_configurations": 77}})
    assert system.service.ended(short.headers["Location"])["state"] == "done"
    states = [system.client.get(location).json()["state"] for location in long]
    assert sorted(states) == ["queued", "running"]
    for location in long:
        system.client.delete(location)
        assert system.service.ended(location)["state"] == "cancelled"


def test_the_client_passes_its_priority_on(service: Service) -> None:
    with Client(service.url, priority=-3) as client:
        low = client.submit("plan", "shipped:vgg16", HARDWARE, gpus=8)
        assert low.document["priority"] == -3
        raised = client.submit("plan", "shipped:vgg16", HARDWARE, gpus=8, priority=4)
        assert (raised.id, raised.document["priority"]) == (low.id, 4)
        client.cancel(low)
    for priority in (11, -11):
        answer = service.client.post("/v1/plans", json={**PLAN, "priority": priority})
        assert (answer.status_code, answer.json()["field"]) == (422, "priority")


REFUSED: list[tuple[str, dict[str, Any], Options]] = [
    ("micro_batches", {"micro_batches": [1, 7]}, Options(micro_batches=(1, 7))),
    *[
        ("pins", {"pins": [rule]}, Options(pins=(parse_pin(rule),)))
        for rule in ("nosuchoperator*:split=none", "*:split=nosuchvariable", "*:nosuchaxis=batch")
    ],
]


@pytest.mark.parametrize(
    ("name", "options", "of_library"), REFUSED, ids=[str(r[1]) for r in REFUSED]
)
def test_what_this_graph_cannot_have_is_refused_at_once(
    service: Service, name: str, options: dict[str, Any], of_library: Options
) -> None:
    """In the words of the library, as the command line prints them; nothing is queued."""
    before = jobs_of(service)
    answer = service.client.post("/v1/plans", json={**PLAN, "gpus": 4, "options": options})
    assert answer.status_code == 422, answer.text
    problem = answer.json()
    assert problem["field"] == f"options.{name}"
    with pytest.raises(BadInput) as refused:
        answers.plan(
            read_graph(shipped_graph("vgg16")), load_hardware(HARDWARE), 4, options=of_library
        )
    assert refused.value.problem in problem["detail"]
    assert refused.value.expected == problem["expected"]
    assert jobs_of(service) == before


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/frontiers", {**PLAN}),
        ("/v1/curves", {"graph": "shipped:vgg16", "hardware": HARDWARE, "max_gpus": 2}),
        ("/v1/quotes", {"graph": "shipped:vgg16", "deadline_s": 3600, "steps": 10}),
    ],
)
def test_every_question_is_checked(service: Service, path: str, body: dict[str, Any]) -> None:
    for options in ({"micro_batches": [7]}, {"pins": ["nosuchoperator*:split=none"]}):
        answer = service.client.post(path, json={**body, "options": options})
        assert answer.status_code == 422, (path, answer.text)
        assert answer.json()["field"] == f"options.{next(iter(options))}"


def test_a_query_and_an_allocation_are_checked_too(service: Service) -> None:
    asked = {"graph": "shipped:vgg16", "hardware": HARDWARE, "max_gpus": "2"}
    answer = service.client.get("/v1/curves", params={**asked, "micro_batches": "7"})
    assert (answer.status_code, answer.json()["field"]) == (422, "options.micro_batches")
    for priority in ("11", "x", "1.5"):
        answer = service.client.get("/v1/curves", params={**asked, "priority": priority})
        assert (answer.status_code, answer.json()["field"]) == (422, "priority")
    answer = service.client.get("/v1/curves", params={**asked, "priority": "-2"})
    assert (answer.status_code, answer.json()["priority"]) == (202, -2)
    service.client.delete(answer.headers["Location"])
    job = {"graph": "shipped:vgg16", "hardware": HARDWARE, "options": {"micro_batches": [7]}}
    answer = service.client.post("/v1/allocations", json={"gpus": 2, "jobs": [job]})
    assert (answer.status_code, answer.json()["field"]) == (422, "jobs[0].options.micro_batches")


def test_rules_that_match_are_taken(service: Service) -> None:
    """The checks refuse nothing that a search would answer."""
    job = posted(service, options={"pins": ["*:split=none"], "micro_batches": [1, 2]})
    assert job["state"] == "queued"
    service.client.delete(job["location"])
