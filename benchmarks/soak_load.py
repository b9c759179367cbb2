"""What the soak asks: users, schedulers, agents and a Prometheus, each a thread with its pace."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from time import monotonic
from typing import Any

import httpx
from bench_service import small_graph

from harness.service.fake_agent import FakeAgent
from harness.service.service_harness import wait_until
from shardwise.graph import canonical_json

QUESTION = {"graph": "shipped:vgg16", "hardware": "dgx-v100-16gb"}
AGENTS = 4
ENDS = ("done", "failed", "cancelled")


@dataclass(frozen=True)
class Call:
    """One exchange: when it began, how long it took, what was wrong."""

    at: float
    kind: str
    seconds: float
    error: str | None


class Load:
    """The calls that were made and the jobs that were accepted."""

    def __init__(self, url: str) -> None:
        self.client = httpx.Client(base_url=url, timeout=120.0)
        self.calls: list[Call] = []
        self.locations: set[str] = set()
        self.stopping = threading.Event()
        self.numbers = count(1)
        self.agents: list[FakeAgent] = []

    def prepare(self) -> None:
        """A curve that is known, a watch on it, agents."""
        accepted = self.client.post("/v1/curves", json={**QUESTION, "max_gpus": 8})
        self.locations.add(accepted.headers["Location"])
        path = accepted.headers["Location"]
        wait_until(lambda: self.client.get(path).json()["state"] == "done", "a known curve", 300)
        watch = {"name": "soak", **QUESTION, "max_gpus": 8}
        self.client.post("/v1/watches", json=watch).raise_for_status()
        self.agents = [FakeAgent(self.client, f"soak-{n}") for n in range(AGENTS)]

    def act(self, kind: str, pause_s: float, ask: Callable[[Load, int], httpx.Response]) -> None:
        """Ask at this pace until told to stop; every call is kept, every error counted."""
        while not self.stopping.wait(pause_s):
            began, error = monotonic(), None
            try:
                answer = ask(self, next(self.numbers))
                if answer.status_code >= 400:
                    error = f"{answer.status_code} {answer.json().get('type', '')}"
                elif answer.status_code == 202 and "Location" in answer.headers:
                    self.locations.add(answer.headers["Location"])
            except (httpx.HTTPError, StreamBroken) as problem:
                error = f"{type(problem).__name__}"
            self.calls.append(Call(began, kind, monotonic() - began, error))


class StreamBroken(Exception):
    """An event stream ended before its job."""


def new_options(number: int) -> dict[str, Any]:
    """Returns options that were not asked for before and that hardly change the search."""
    return {"epsilon": 0.01 + number * 1e-7}


def known_curve(load: Load, number: int) -> httpx.Response:
    return load.client.get("/v1/curves", params={**QUESTION, "max_gpus": 8})


def new_curve(load: Load, number: int) -> httpx.Response:
    asked = {**QUESTION, "max_gpus": 4, **new_options(number)}
    return load.client.get("/v1/curves", params=asked)


def new_plan(load: Load, number: int) -> httpx.Response:
    body = {**QUESTION, "gpus": 4, "options": new_options(number)}
    return load.client.post("/v1/plans", json=body)


def new_quote(load: Load, number: int) -> httpx.Response:
    body = {"graph": QUESTION["graph"], "steps": 1000 + number, "max_instances": 1}
    return load.client.post("/v1/quotes", json=body)


def upload(load: Load, number: int) -> httpx.Response:
    return load.client.post("/v1/graphs", content=canonical_json(small_graph(number)))


def graphs(load: Load, number: int) -> httpx.Response:
    return load.client.get("/v1/graphs?limit=50")


def allocation(load: Load, number: int) -> httpx.Response:
    jobs = [
        {"name": "a", **QUESTION},
        {
            "name": "b",
            "curve": {"points": [{"gpus": 1, "time_s": 1.0}, {"gpus": 2, "time_s": 0.6}]},
        },
    ]
    return load.client.post(
        "/v1/allocations", json={"gpus": 8, "objective": "max-min", "jobs": jobs}
    )


def watches(load: Load, number: int) -> httpx.Response:
    return load.client.get("/v1/watches/metrics")


def metrics(load: Load, number: int) -> httpx.Response:
    return load.client.get("/metrics")


def heartbeat(load: Load, number: int) -> httpx.Response:
    agent = load.agents[number % AGENTS]
    beat = {"boot_id": agent.boot_id, "inventory_hash": "h", "jobs": []}
    return agent.own("POST", "heartbeat", json=beat)


def events(load: Load, number: int) -> httpx.Response:
    """The stream of a question of its own, from its beginning to its end."""
    body = {**QUESTION, "gpus": 2, "options": new_options(number)}
    answer = load.client.post("/v1/frontiers", json=body)
    if answer.status_code != 202:
        return answer
    load.locations.add(answer.headers["Location"])
    last = ""
    with load.client.stream("GET", f"{answer.headers['Location']}/events") as stream:
        for line in stream.iter_lines():
            if line.startswith("event: "):
                last = line.removeprefix("event: ")
    if last not in ENDS:
        raise StreamBroken(last)
    return stream


WAITS = ("events",)
"""Kinds whose time is that of a computation."""

ACTORS: dict[str, tuple[float, Callable[[Load, int], httpx.Response]]] = {
    "known curve": (0.05, known_curve),
    "new curve": (12.0, new_curve),
    "new plan": (10.0, new_plan),
    "new quote": (60.0, new_quote),
    "upload": (1.0, upload),
    "list of graphs": (0.5, graphs),
    "allocation": (1.0, allocation),
    "watches": (2.0, watches),
    "metrics": (5.0, metrics),
    "heartbeat": (1.0, heartbeat),
    "events": (8.0, events),
}
"""kind: seconds between calls, the call."""
