"""`make soak`: ten minutes of mutated JSON, YAML and MCP bodies, with /healthz quick throughout.

A service and a worker on PostgreSQL and Valkey. Another process sends bodies that are nearly right
(harness/fuzz/bodies.py) as fast as they are answered, while this one asks /healthz twenty times a
second. The command fails when /healthz fails or takes longer than 200 ms even once, a request or a
job ends in a defect, or a request is not answered within a minute; what did it is in out/fuzz. A
seed gives the same bodies to each sender.
"""

from __future__ import annotations

import argparse
import base64
import json
import multiprocessing
import os
import random
import re
import sys
import threading
from collections import Counter
from dataclasses import asdict
from multiprocessing.synchronize import Event
from pathlib import Path
from time import monotonic
from typing import Any

import httpx
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from crowd import percentiles
from run import heading, store
from soak import fresh_system

from harness.fuzz.bodies import Drawn, drawn, what_is_wrong
from harness.service.service_harness import System
from service.base.background import LONG_SOLVE, give_way

SENDERS = 8
"""Connections that send; a tool that waits for its job holds one."""

HEALTH_EVERY_S = 0.05
HEALTH_MOST_MS = 200.0
ANSWERED_WITHIN_S = STARTS_WITHIN_S = 60.0
SETTINGS = {
    "rate_per_s": "0", "anonymous_rate_per_s": "0", "enrol_rate_per_s": "0", "solve_time_s": "5",
    "policy_wait_s": "1", "max_queued": "20",
}  # fmt: skip
"""No rates, which would refuse most bodies before they are read; short solves."""

FOUND = Path("out/fuzz")


def attack(url: str, seed: int, started: Event, stopping: Event, told: Any) -> None:
    """Sends bodies on several connections until told to stop: a process of its own.

    It gives way to what it attacks: elsewhere it would have a machine of its own.
    """
    give_way(LONG_SOLVE)
    senders = [
        threading.Thread(target=send, args=(url, seed + n, stopping, told)) for n in range(SENDERS)
    ]
    for sender in senders:
        sender.start()
    started.set()
    for sender in senders:
        sender.join()


def send(url: str, seed: int, stopping: Event, told: Any) -> None:
    """Sends bodies until told to stop; puts what was wrong, and at the end counts, into `told`."""
    draw, counts = random.Random(seed), Counter[str]()
    with httpx.Client(base_url=url, timeout=ANSWERED_WITHIN_S) as client:
        while not stopping.is_set():
            one = drawn(draw)
            try:
                answer = client.post(one.path, content=one.body, headers=one.headers)
                why = what_is_wrong(answer.status_code, answer.text)
                counts[f"{one.kind} {answer.status_code}"] += 1
            except httpx.TimeoutException:
                why = f"no answer within {ANSWERED_WITHIN_S:g} s"
            except httpx.HTTPError as error:
                why = f"{type(error).__name__}: {error}"
            if why is not None:
                told.put((why, one))
    told.put(counts)


def health(url: str, stopping: threading.Event, seen_ms: list[float], failed: Counter[str]) -> None:
    """Asks /healthz at a pace until told to stop."""
    with httpx.Client(base_url=url, timeout=ANSWERED_WITHIN_S) as client:
        while not stopping.wait(HEALTH_EVERY_S):
            began = monotonic()
            try:
                client.get("/healthz").raise_for_status()
            except httpx.HTTPError as error:
                failed[f"/healthz: {error}"] += 1
            seen_ms.append((monotonic() - began) * 1e3)


def fuzz(seconds: float, seed: int) -> dict[str, Any]:
    """Runs the attack. Returns the figures; `wrong` lists what must not be."""
    with fresh_system(concurrency="1", **SETTINGS) as system:
        url = system.service.url
        context = multiprocessing.get_context("spawn")
        started, stopping, told = context.Event(), context.Event(), context.Queue()
        given = (url, seed, started, stopping, told)
        process = context.Process(target=attack, args=given, daemon=True)
        process.start()
        if not started.wait(STARTS_WITHIN_S):
            raise TimeoutError(f"the sender did not start within {STARTS_WITHIN_S:g} s")
        before_s = scheduled_s(system.service.pid)
        seen_ms: list[float] = []
        enough, failed = threading.Event(), Counter[str]()
        asking = threading.Thread(target=health, args=(url, enough, seen_ms, failed))
        asking.start()
        enough.wait(seconds)
        stopping.set()
        wrong, counts = _told(told)
        enough.set()
        asking.join()
        ran_s, waited_s = np.subtract(scheduled_s(system.service.pid), before_s)
        process.join()
        lag = late_loops(system.client.get("/metrics").text)
        wrong += _defects(system) + [f"{count} times {why}" for why, count in failed.items()]
        if not counts:
            wrong.append("no body was answered")
    return {
        "bodies": dict(sorted(counts.items())),
        "healthz_ms": percentiles(seen_ms),
        "loop_ran_s": float(ran_s),
        "loop_waited_for_a_core_s": float(waited_s),
        "loop_late_by_s": lag,
        "wrong": wrong,
    }


def scheduled_s(pid: int) -> tuple[float, float]:
    """Returns the seconds that a process's first thread, which has the event loop, has run and has
    waited for a core (Linux's schedstat).

    What /healthz waits for beyond that is what holds the loop or the interpreter.
    """
    ran, waited, _ = Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()
    return int(ran) / 1e9, int(waited) / 1e9


def late_loops(metrics: str) -> dict[str, float]:
    """Returns how often the event loop came back late, by the most seconds, cumulative."""
    found = re.findall(r'event_loop_lag_seconds_bucket{le="([^"]+)"} (\S+)', metrics)
    return {limit: float(count) for limit, count in found}


def _told(told: Any) -> tuple[list[str], Counter[str]]:
    """Returns what the senders found, once each has ended."""
    wrong, counts, ended = [], Counter[str](), 0
    while ended < SENDERS:
        one = told.get(timeout=2 * ANSWERED_WITHIN_S)
        if isinstance(one, Counter):
            ended += 1
            counts += one
        else:
            why, request = one
            wrong.append(f"{why}: {_kept(why, request, len(wrong))}")
    return wrong, counts


def _kept(why: str, one: Drawn, number: int) -> Path:
    """Writes a request to a file that says what was wrong. Returns the file's path."""
    FOUND.mkdir(parents=True, exist_ok=True)
    path = FOUND / f"body-{os.getpid()}-{number}.json"
    body = base64.b64encode(one.body).decode()
    path.write_text(json.dumps({"why": why, **asdict(one), "body": body}, indent=1))
    return path


def _defects(system: System) -> list[str]:
    """Returns what the service counted as defects, and the jobs that ended in one."""
    wrong = []
    text = system.client.get("/metrics").text
    if "shardwise_defects_total 0.0" not in text:
        wrong.append("the service counted defects: its log has the tracebacks")
    cursor: str | None = ""
    while cursor is not None:
        page = system.client.get(
            "/v1/jobs", params={"state": "failed", "limit": 200, "cursor": cursor or None}
        ).json()
        for job in page["items"]:
            if job["error"]["type"].endswith((":defect", ":worker-lost")):
                wrong.append(f"job {job['id']}: {job['error']['type']}: {job['error']['detail']}")
        cursor = page.get("next")
    return wrong


def show(figures: dict[str, Any]) -> None:
    """Prints the figures."""
    print(f"bodies: {sum(figures['bodies'].values())}: {figures['bodies']}; seed {figures['seed']}")
    times = figures["healthz_ms"]
    print(
        f"/healthz: p50 {times['p50']:.1f}, p99 {times['p99']:.1f}, most {times['most']:.1f} ms "
        f"of {times['count']} (at most {figures['healthz_most_ms']:g})"
    )
    print(
        f"the loop's thread ran {figures['loop_ran_s']:.0f} s and waited for a core "
        f"{figures['loop_waited_for_a_core_s']:.0f} s; it was late by at most "
        + ", ".join(f"{most} s {times:.0f}" for most, times in figures["loop_late_by_s"].items())
    )
    for line in figures["wrong"]:
        print(f"WRONG: {line}")


def main() -> int:
    """Fuzzes, prints and stores; returns 1 if anything was wrong or /healthz slow."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--healthz-ms", type=float, default=HEALTH_MOST_MS, help="the most")
    args = parser.parse_args()
    figures = {
        **heading("fuzzing"), "minutes": args.minutes, "seed": args.seed,
        "healthz_most_ms": args.healthz_ms, **fuzz(args.minutes * 60, args.seed),
    }  # fmt: skip
    show(figures)
    store(figures, Path("out/bench/fuzzing.json"))
    return 1 if figures["wrong"] or figures["healthz_ms"]["most"] > args.healthz_ms else 0


if __name__ == "__main__":
    sys.exit(main())
