"""Twenty tenants on one service, two of them hostile: what do the others notice?

Three phases on the same system (PostgreSQL, Valkey, one service, one worker, default settings):
one tenant alone, eighteen polite tenants, and the same eighteen with two hostile ones. Every
polite tenant asks for a curve that is known several times a second, and now and then a question
that has to be computed. One hostile tenant floods what needs no worker (uploads of large ONNX
files, padded queries, gzip bombs, endless headers, half-open connections, wrong keys); the other
keeps as many questions queued as it is allowed, long ones first, and lists what it has.

Prints and stores the 99th percentile of cached answers (target: 50 ms) and the waits for cold
questions against those of the tenant that was alone (target: twice). Everything runs on one
machine, the load included.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import multiprocessing
import os
import random
import socket
import statistics
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from multiprocessing.synchronize import Event
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from run import heading, store
from soak import fresh_system, rss_mib

from harness.service.service_harness import System, wait_until
from service.base.background import LONG_SOLVE, give_way
from service.store.keys import create_key

POLITE, HOSTILE = 18, 2
QUESTION = {"graph": "shipped:vgg16", "hardware": "dgx-v100-16gb"}
LONG = {"graph": "shipped:gpt2", "hardware": "dgx-v100-16gb"}
KNOWN = {**QUESTION, "max_gpus": 8}
CACHED_EVERY_S = 0.25
COLD_EVERY_S = 75.0
ALONE_QUESTIONS = 12
CACHED_P99_MS = 50.0
COLD_RATIO = 2.0
PATIENCE_S = 900.0


@dataclass
class Phase:
    """What the polite tenants met in one phase; seconds."""

    cached: list[float] = field(default_factory=list)
    cold: list[float] = field(default_factory=list)
    probes: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)

    def figures(self) -> dict[str, Any]:
        """Percentiles in milliseconds (cached answers, probes) and seconds (cold questions)."""
        return {
            "cached_ms": percentiles([s * 1e3 for s in self.cached]),
            "probe_ms": percentiles([s * 1e3 for s in self.probes]),
            "cold_s": percentiles(self.cold),
            "errors": dict(self.errors),
        }


def percentiles(values: list[float]) -> dict[str, float]:
    """Returns the number of values, and their percentiles if there are any."""
    if not values:
        return {"count": 0}
    p50, p90, p99 = np.percentile(values, [50, 90, 99])
    return {
        "count": len(values),
        "p50": float(p50),
        "p90": float(p90),
        "p99": float(p99),
        "most": max(values),
    }


class Tenant:
    """One polite tenant: its own connection, known curve and questions."""

    numbers = count(1)

    def __init__(self, url: str, key: str) -> None:
        headers = {"Authorization": f"Bearer {key}"}
        self.client = httpx.Client(base_url=url, headers=headers, timeout=PATIENCE_S)

    def prepare(self) -> None:
        """Has its curve computed, so that it is known from then on."""
        path = "/v1/curves"
        wait_until(
            lambda: self.client.get(path, params=KNOWN).status_code == 200, "a curve", PATIENCE_S
        )

    def cached(self, phase: Phase) -> None:
        """Asks for the known curve once."""
        began = monotonic()
        answer = self.client.get("/v1/curves", params=KNOWN)
        phase.cached.append(monotonic() - began)
        if answer.status_code != 200:
            phase.errors[f"cached {answer.status_code}"] += 1

    def cold(self, phase: Phase, stopping: threading.Event) -> None:
        """Asks a question that has to be computed, and waits for its answer."""
        options = {"epsilon": 0.01 + next(self.numbers) * 1e-7}
        began = monotonic()
        answer = self.client.post("/v1/plans", json={**QUESTION, "gpus": 4, "options": options})
        if answer.status_code != 202:
            phase.errors[f"cold {answer.status_code}"] += 1
            return
        while not stopping.wait(0.1):
            job = self.client.get(answer.headers["Location"]).json()
            if job.get("state") in ("done", "failed", "cancelled"):
                phase.cold.append(monotonic() - began)
                if job["state"] != "done":
                    phase.errors[f"cold {job['state']}"] += 1
                return


def _every(
    pause_s: float, stopping: threading.Event, act: Callable[[], None], phase: Phase
) -> None:
    """Acts at this pace until told to stop; connections that broke are counted.

    Its first act comes at a random moment: tenants do not ask in chorus.
    """
    if stopping.wait(pause_s * random.random()):
        return
    while not stopping.wait(pause_s):
        try:
            act()
        except httpx.HTTPError as error:
            phase.errors[type(error).__name__] += 1


def crowd(tenants: list[Tenant], seconds: float) -> Phase:
    """Runs the polite tenants side by side for the given time."""
    phase, stopping = Phase(), threading.Event()
    threads = []
    probe = httpx.Client(base_url=tenants[0].client.base_url, timeout=PATIENCE_S)

    def ready() -> None:
        began = monotonic()
        status = probe.get("/readyz").status_code
        phase.probes.append(monotonic() - began)
        if status != 200:
            phase.errors[f"readyz {status}"] += 1

    def act(pause_s: float, what: Callable[[], None]) -> None:
        threads.append(
            threading.Thread(target=_every, args=(pause_s, stopping, what, phase), daemon=True)
        )

    act(1.0, ready)
    for number, tenant in enumerate(tenants):
        act(CACHED_EVERY_S, lambda tenant=tenant: tenant.cached(phase))
        # Out of step: each pace differs a little, so that the tenants meet in every order.
        pace = COLD_EVERY_S * (0.75 + 0.5 * number / len(tenants))
        act(pace, lambda tenant=tenant: tenant.cold(phase, stopping))
    for thread in threads:
        thread.start()
    stopping.wait(seconds)
    stopping.set()
    for thread in threads:
        thread.join(60)
    return phase


def alone(tenant: Tenant) -> Phase:
    """Runs one tenant that has the service to itself."""
    phase, never = Phase(), threading.Event()
    for _ in range(ALONE_QUESTIONS):
        tenant.cold(phase, never)
        for _ in range(20):
            tenant.cached(phase)
    return phase


# What hostile tenants do, in a process of their own: they share no interpreter with the clocks.


def hostile(url: str, flood_key: str, hog_key: str, stopping: Event) -> None:
    """Runs until told to stop, whatever the service answers.

    It gives way to what it attacks: elsewhere it would have a machine of its own.
    """
    os.setsid()
    give_way(LONG_SOLVE)
    parts = urlsplit(url)
    assert parts.hostname is not None and parts.port is not None
    address = (parts.hostname, parts.port)
    model = large_onnx()
    bomb = gzip.compress(b"") * 52_000
    flood, hog = ({"Authorization": f"Bearer {key}"} for key in (flood_key, hog_key))
    numbers = count(1)

    def upload(client: httpx.Client) -> None:
        kind = {**flood, "Content-Type": "application/onnx"}
        client.post("/v1/graphs", content=model, headers=kind)

    def padded(client: httpx.Client) -> None:
        padding = f"{next(numbers)}" * 2000
        client.get(
            f"/v1/curves?graph=shipped:vgg16&hardware=x&max_gpus=8&pad={padding}", headers=flood
        )

    def bombs(client: httpx.Client) -> None:
        client.post("/v1/agents", content=bomb, headers={"Content-Encoding": "gzip"})
        client.post("/v1/graphs", content=bomb, headers={**flood, "Content-Encoding": "gzip"})

    def wrong_key(client: httpx.Client) -> None:
        key = f"sw_{next(numbers):016x}_" + "A" * 43
        client.get("/v1/jobs", headers={"Authorization": f"Bearer {key}"})

    def endless_headers(client: httpx.Client) -> None:
        with socket.create_connection(address, 10) as link:
            link.sendall(b"GET / HTTP/1.1\r\n")
            for number in range(2_000):
                link.sendall(b"X-%d: " % number + b"a" * 8_000 + b"\r\n")

    def half_open(client: httpx.Client) -> None:
        links = [socket.create_connection(address, 10) for _ in range(200)]
        for link in links:
            link.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n")
        stopping.wait(20)
        for link in links:
            link.close()

    def questions(client: httpx.Client) -> None:
        options = {"epsilon": 0.02 + next(numbers) * 1e-7}
        body = {**LONG, "max_gpus": 64, "options": options}
        client.post("/v1/curves", json=body, headers=hog)
        body = {**QUESTION, "gpus": 4, "options": options}
        client.post("/v1/plans", json=body, headers=hog)

    def lists(client: httpx.Client) -> None:
        client.get("/v1/jobs?limit=100", headers=hog)

    acts = [upload] * 16 + [padded] * 2 + [bombs] + [wrong_key] * 2
    acts += [endless_headers, half_open] + [questions] * 2 + [lists] * 4
    threads = [threading.Thread(target=_attack, args=(url, act, stopping)) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _attack(url: str, act: Callable[[httpx.Client], None], stopping: Event) -> None:
    with httpx.Client(base_url=url, timeout=60.0) as client:
        while not stopping.wait(0.02):
            try:
                act(client)
            except (httpx.HTTPError, OSError):
                stopping.wait(0.2)


def large_onnx() -> bytes:
    """An ONNX file of 1.4 MB with 12,000 small operators, which takes seconds to read."""
    from onnx import TensorProto, helper

    shape = ["batch", 64]
    nodes = [
        helper.make_node("Relu", [f"very_long_name_of_a_tensor_number_{n}"],
                         [f"very_long_name_of_a_tensor_number_{n + 1}"])
        for n in range(12_000)
    ]  # fmt: skip
    first = helper.make_tensor_value_info(
        "very_long_name_of_a_tensor_number_0", TensorProto.FLOAT, shape
    )
    last = helper.make_tensor_value_info(
        f"very_long_name_of_a_tensor_number_{len(nodes)}", TensorProto.FLOAT, shape
    )
    model = helper.make_model(helper.make_graph(nodes, "flood", [first], [last]))
    content: bytes = model.SerializeToString()
    return content


@contextmanager
def attacked(url: str, keys: list[str]) -> Iterator[None]:
    """With the hostile tenants at work."""
    context = multiprocessing.get_context("spawn")
    stopping = context.Event()
    process = context.Process(target=hostile, args=(url, *keys, stopping), daemon=True)
    process.start()
    try:
        yield
    finally:
        stopping.set()
        process.join(120)
        process.kill()


def measure(minutes: float) -> dict[str, Any]:
    """Runs the three phases; returns their figures."""
    with fresh_system() as system:
        keys = _keys(system, POLITE + HOSTILE)
        gc.collect()
        gc.freeze()  # the clocks' own pauses are not the service's
        tenants = [Tenant(system.service.url, key) for key in keys[:POLITE]]
        for tenant in tenants:
            tenant.prepare()
        phases = {"alone": alone(tenants[0])}
        phases["polite"] = crowd(tenants, minutes * 60 / 4)
        with attacked(system.service.url, keys[POLITE:]):
            phases["hostile"] = crowd(tenants, minutes * 60)
        memory = rss_mib(system.service.pid)
    figures: dict[str, Any] = {name: phase.figures() for name, phase in phases.items()}
    lone = statistics.median(phases["alone"].cold)
    waits = phases["hostile"].cold
    figures["cold_over_alone"] = {
        "polite": statistics.median(phases["polite"].cold) / lone
        if phases["polite"].cold
        else None,
        "hostile": statistics.median(waits) / lone if waits else None,
        "hostile_p90": float(np.percentile(waits, 90)) / lone if waits else None,
    }
    figures["service_rss_mib"] = memory
    return figures


def _keys(system: System, number: int) -> list[str]:
    database = system.database()
    with database.write() as session:
        keys = [create_key(session, f"t{n:02}", ("read", "submit")) for n in range(number)]
    database.close()
    return keys


def show(figures: dict[str, Any]) -> None:
    """Prints the table."""
    print("phase     cached p50  p99 ms (number)   readyz p99 ms   cold p50   p90   p99 s (number)")
    for name in ("alone", "polite", "hostile"):
        row = figures[name]
        cached, probe, cold = row["cached_ms"], row["probe_ms"], row["cold_s"]
        print(
            f"{name:9} {cached.get('p50', 0):10.1f} {cached.get('p99', 0):7.1f} "
            f"({cached['count']}) {probe.get('p99', 0):14.1f} {cold.get('p50', 0):10.2f} "
            f"{cold.get('p90', 0):6.2f} {cold.get('p99', 0):6.2f} ({cold['count']})"
        )
        if row["errors"]:
            print(f"          errors: {row['errors']}")
    print(f"cold questions' waits over those alone: {figures['cold_over_alone']}")
    print(f"service: {figures['service_rss_mib']:.0f} MiB at the end")
    print(f"targets: cached p99 {CACHED_P99_MS:g} ms, waits {COLD_RATIO:g} times those alone")


def main() -> int:
    """Runs, prints and stores it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="of the hostile phase")
    minutes = parser.parse_args().minutes
    figures = {**heading("crowd"), "minutes": minutes, **measure(minutes)}
    show(figures)
    store(figures, Path("out/bench/crowd.json"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
