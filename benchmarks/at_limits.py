"""`make soak`: one tenant at every limit; what do another tenant and an operator notice?

One service and one worker on PostgreSQL and Valkey with default settings, but fewer places (as few
as this machine can hold open beside the clocks). One tenant takes all that it may have: event
streams and waiting agents, archives, uploads, memory for bodies, calls that
wait, jobs that are queued. Another lists, reads, asks what is known and uploads a little, before
that and meanwhile; an operator lists tenants, follows a job and downloads an archive.

The command fails when the other tenant's calls take longer than 100 ms at the 99th percentile, or
three times what they took before where that is more (two cores make the load too), when a call of
it or of the operator is refused, or when the first tenant was not at a limit after all.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import count
from multiprocessing.synchronize import Event
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

import httpx

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench_service import small_graph
from crowd import KNOWN, LONG, PATIENCE_S, QUESTION, large_onnx, percentiles
from run import heading, store
from soak import fresh_system

from harness.service.fake_agent import FakeAgent
from harness.service.service_harness import System, wait_until
from service.base.background import LONG_SOLVE, give_way
from service.store.keys import create_key
from shardwise.graph import canonical_json

PLACES = 40
"""Streams and waiting agents of a process; a tenant has half."""

SETTINGS = {"max_watchers": str(PLACES), "max_polls": str(PLACES), "max_queued": "10"}
CALLS_P99_MS, TIMES_BEFORE = 100.0, 3.0
EVERY_S = 0.05
OPERATOR_EVERY_S = 1.0
Client = httpx.Client


def hog(url: str, key: str, started: Event, stopping: Event, told: Any) -> None:
    """Takes all that a tenant can, again and again, until told to stop; counts its 429 by limit."""
    os.setsid()
    give_way(LONG_SOLVE)
    parts = urlsplit(url)
    address = (str(parts.hostname), int(parts.port or 80))
    refused, numbers = Counter[str](), count(1)
    headers = {"Authorization": f"Bearer {key}"}
    model = large_onnx()
    client = Client(base_url=url, headers=headers, timeout=60.0)
    asked = client.post("/v1/curves", json={**LONG, "max_gpus": 64})
    stream = f"{asked.headers['Location']}/events"
    agents = [FakeAgent(client, f"hog-{n}", headers=headers) for n in range(4)]

    def held(path: str, bearer: str, name: str) -> None:
        """A GET whose answer is not read beyond its status."""
        with socket.create_connection(address, 30) as link:
            head = f"GET {path} HTTP/1.1\r\nHost: {parts.netloc}\r\nAuthorization: Bearer {bearer}"
            link.sendall(f"{head}\r\n\r\n".encode())
            answer = link.recv(64)
            if b" 429 " in answer:
                refused[name] += 1
                stopping.wait(0.5)
            elif answer:
                stopping.wait(20)

    def tried(name: str, ask: Callable[[Client], httpx.Response]) -> Callable[[Client], None]:
        def act(client: Client) -> None:
            if ask(client).status_code == 429:
                refused[name] += 1

        return act

    def poll(client: Client) -> None:
        agent = agents[next(numbers) % len(agents)]
        held(f"/v1/agents/{agent.id}/assignments?wait_s=30", agent.key, "polls")

    def large_body(client: Client) -> httpx.Response:
        """Announces the largest body, and sends it slowly."""

        def pieces() -> Any:
            for _ in range(40):
                yield b" " * 2**10
                if stopping.wait(0.25):
                    return

        return client.post("/v1/hardware", content=pieces(), headers={"X": "1"})

    def question(client: Client) -> httpx.Response:
        options = {"epsilon": 0.02 + next(numbers) * 1e-7}
        return client.post("/v1/curves", json={**LONG, "max_gpus": 64, "options": options})

    onnx = {"Content-Type": "application/onnx"}
    acts: list[tuple[int, Callable[[Client], None]]] = [
        (PLACES, lambda client: held(stream, key, "streams")),
        (PLACES, poll),
        (6, tried("archives", lambda c: c.get("/v1/tenants/hog/export"))),
        (20, tried("uploads", lambda c: c.post("/v1/graphs", content=model, headers=onnx))),
        (6, tried("bodies", large_body)),
        (4, tried("queue", question)),
        (16, tried("calls", lambda c: c.get("/v1/jobs?limit=100"))),
    ]
    threads = [
        threading.Thread(target=_again, args=(url, headers, act, stopping))
        for number, act in acts
        for _ in range(number)
    ]
    for thread in threads:
        thread.start()
    started.set()
    for thread in threads:
        thread.join()
    told.put(refused)


def _again(
    url: str, headers: dict[str, str], act: Callable[[Client], None], stopping: Event
) -> None:
    with Client(base_url=url, headers=headers, timeout=60.0) as client:
        while not stopping.wait(0.02):
            try:
                act(client)
            except (httpx.HTTPError, OSError):
                stopping.wait(0.2)


def calls(url: str, key: str, seconds: float) -> tuple[list[float], Counter[str]]:
    """Makes a tenant's calls in turn at a pace. Returns what they took, in ms, and errors."""
    took_ms, errors = [], Counter[str]()
    numbers = count(int(monotonic() * 1e3))
    with Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=60.0) as client:
        upload = partial_upload(numbers)
        asks: tuple[Callable[[Client], httpx.Response], ...] = (
            lambda c: c.get("/v1/curves", params=KNOWN),
            lambda c: c.get("/v1/graphs?limit=20"),
            lambda c: c.get("/v1/me"),
            lambda c: c.get("/v1/jobs?limit=20"),
            upload,
        )
        until, turn = monotonic() + seconds, 0
        while monotonic() < until:
            began = monotonic()
            answer = asks[turn % len(asks)](client)
            took_ms.append((monotonic() - began) * 1e3)
            if answer.status_code >= 400:
                errors[f"{answer.request.url.path} {answer.status_code}"] += 1
            turn += 1
            threading.Event().wait(EVERY_S)
    return took_ms, errors


def partial_upload(numbers: Any) -> Callable[[Client], httpx.Response]:
    """Returns the upload of a small graph that is new each time."""

    def upload(client: Client) -> httpx.Response:
        return client.post("/v1/graphs", content=canonical_json(small_graph(next(numbers))))

    return upload


def operate(url: str, key: str, job: str, stopping: threading.Event, errors: Counter[str]) -> None:
    """An operator's calls, until told to stop: a list, a stream's beginning, a whole archive."""
    headers = {"Authorization": f"Bearer {key}"}
    with Client(base_url=url, headers=headers, timeout=60.0) as client:
        while not stopping.wait(OPERATOR_EVERY_S):
            for path in ("/v1/tenants", "/v1/tenants/other/export"):
                status = client.get(path).status_code
                if status != 200:
                    errors[f"operator {path} {status}"] += 1
            with client.stream("GET", f"{job}/events") as stream:
                if stream.status_code != 200:
                    errors[f"operator events {stream.status_code}"] += 1


def measure(seconds: float) -> dict[str, Any]:
    """Runs both phases. Returns the figures."""
    with fresh_system(**SETTINGS) as system:
        keys = _keys(system)
        url = system.service.url
        job = _prepared(url, keys["other"], keys["operator"])
        before, errors = calls(url, keys["other"], seconds)
        context = multiprocessing.get_context("spawn")
        started, stopping, told = context.Event(), context.Event(), context.Queue()
        given = (url, keys["hog"], started, stopping, told)
        process = context.Process(target=hog, args=given, daemon=True)
        process.start()
        started.wait(PATIENCE_S)
        enough = threading.Event()
        operator = threading.Thread(
            target=operate, args=(url, keys["operator"], job, enough, errors)
        )
        operator.start()
        meanwhile, more = calls(url, keys["other"], seconds)
        enough.set()
        operator.join()
        stopping.set()
        refused = told.get(timeout=120)
        process.join()
    return {
        "before_ms": percentiles(before),
        "meanwhile_ms": percentiles(meanwhile),
        "errors": dict(errors + more),
        "hog_refused": dict(refused),
    }


def _keys(system: System) -> dict[str, str]:
    database = system.database()
    with database.write() as session:
        keys = {
            "hog": create_key(session, "hog", ("admin",)),
            "other": create_key(session, "other", ("read", "submit")),
            "operator": create_key(session, "operations", ("operator",)),
        }
    database.close()
    return keys


def _prepared(url: str, other: str, operator: str) -> str:
    """Has the other tenant's curve computed. Returns the path of a job of the operator's."""
    with Client(base_url=url, headers={"Authorization": f"Bearer {other}"}) as client:
        wait_until(partial(_is_known, client), "a known curve", PATIENCE_S)
    with Client(base_url=url, headers={"Authorization": f"Bearer {operator}"}) as client:
        answer = client.post("/v1/frontiers", json={**QUESTION, "gpus": 1})
        location: str = answer.headers["Location"]
        wait_until(partial(_is_done, client, location), "a job of the operator's", PATIENCE_S)
    return location


def _is_known(client: Client) -> bool:
    return client.get("/v1/curves", params=KNOWN).status_code == 200


def _is_done(client: Client, location: str) -> bool:
    return client.get(location).json()["state"] == "done"


LIMITS = ("streams", "polls", "archives", "uploads", "queue")
"""Limits at which the tenant must have been; the others depend on the machine's pace."""


def wrong(figures: dict[str, Any]) -> list[str]:
    """Returns what must not be."""
    before, meanwhile = figures["before_ms"]["p99"], figures["meanwhile_ms"]["p99"]
    most = max(CALLS_P99_MS, TIMES_BEFORE * before)
    lines = [f"refused: {errors}" for errors in [figures["errors"]] if errors]
    if meanwhile > most:
        lines.append(f"calls took {meanwhile:.0f} ms at the 99th percentile, at most {most:.0f}")
    lines += [f"never at its limit of {n}" for n in LIMITS if not figures["hog_refused"].get(n)]
    return lines


def main() -> int:
    """Measures, prints and stores; returns 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0, help="of each phase")
    seconds = parser.parse_args().seconds
    figures = {**heading("at limits"), "seconds": seconds, **measure(seconds)}
    for name in ("before_ms", "meanwhile_ms"):
        row = figures[name]
        print(f"{name}: p50 {row['p50']:.1f}, p99 {row['p99']:.1f} of {row['count']}")
    print(f"the tenant at its limits was refused: {figures['hog_refused']}")
    lines = wrong(figures)
    for line in lines:
        print(f"WRONG: {line}")
    store(figures, Path("out/bench/at_limits.json"))
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
