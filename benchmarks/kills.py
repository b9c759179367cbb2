"""`make soak`: workers killed again and again with default settings; what became of each job?

Several tenants keep questions coming on PostgreSQL and Valkey. Every few seconds a worker that
computes is killed with SIGKILL and another one started; the service and the broker are killed once
each. Leases and attempts are the defaults, so that a job waits for its lease after a kill, and one
that was hit as often as a job may be tried fails as `worker-lost`: those are counted apart.

The command fails when an accepted job has no end, a second one, no answer, or another failure.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import threading
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import httpx
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from run import heading, store
from soak import ENDS_WITHIN_S, fresh_system
from sqlalchemy import func, select

from harness.service.service_harness import App, System, Valkey, command_of, descendants, wait_until
from service.base.settings import Settings
from service.store.database import Database, now
from service.store.keys import create_key
from service.store.tables import ENDED, Job, Result

TENANTS = 4
OUTSTANDING = 3
"""Questions that a tenant has open at once."""

WORKERS = 2
KILL_EVERY_S = 12.0
SERVICE_DIES_AT, BROKER_DIES_AT = 0.4, 0.7
"""Parts of the run."""

LOOK_EVERY_S = 0.5
SHORT = {"graph": "shipped:vgg16", "hardware": "dgx-v100-16gb", "gpus": 4}
LONG = {"graph": "shipped:gpt2", "hardware": "dgx-h100", "max_gpus": 6}
LONG_EVERY = 4
LONGEST = {**LONG, "max_gpus": 100}
LONGEST_EVERY = 48
"""About a minute of work among others: longer than a worker lives, so that most are lost."""

DEFAULTS = Settings()


def question(number: int) -> tuple[str, dict[str, Any]]:
    """Returns the path and the body of a question that has not been asked before."""
    path, body = ("curves", LONG) if number % LONG_EVERY == 0 else ("frontiers", SHORT)
    if number % LONGEST_EVERY == 1:
        path, body = "curves", LONGEST
    return path, {**body, "options": {"epsilon": 0.01 + number * 1e-6}}


class Tenant(threading.Thread):
    """Keeps some questions open until told to stop; remembers each job that was accepted."""

    numbers = count(1)

    def __init__(self, system: System, key: str, stopping: threading.Event) -> None:
        super().__init__(daemon=True)
        self._system = system
        self._stopping = stopping
        self._client = httpx.Client(headers={"Authorization": f"Bearer {key}"}, timeout=30.0)
        self._open: set[str] = set()
        self.accepted: set[str] = set()
        self.again = 0
        self.refused: Counter[str] = Counter()

    def run(self) -> None:
        """Asks until told to stop and until the last question was accepted."""
        while not self._stopping.wait(LOOK_EVERY_S):
            while len(self._open) < OUTSTANDING:
                self._ask(next(self.numbers))
            self._look()

    def _ask(self, number: int) -> None:
        """Asks one question, as often as it takes, under one Idempotency-Key."""
        path, body = question(number)
        once = {"Idempotency-Key": f"kills-{number}"}
        while (answer := self._call("POST", f"/v1/{path}", json=body, headers=once)) is None:
            self.again += 1
            sleep(LOOK_EVERY_S)
        assert answer.status_code == 202, answer.text
        self.accepted.add(answer.headers["Location"])
        self._open.add(answer.headers["Location"])

    def _look(self) -> None:
        """Forgets the open questions that have been answered."""
        for location in list(self._open):
            answer = self._call("GET", location)
            if answer is not None and answer.json()["state"] in ENDED:
                self._open.discard(location)

    def final_job(self, location: str) -> dict[str, Any]:
        """Returns the job as its tenant sees it in the end."""
        answer = self._call("GET", location)
        assert answer is not None and answer.status_code == 200, location
        job: dict[str, Any] = answer.json()
        return job

    def _call(self, method: str, path: str, **keywords: Any) -> httpx.Response | None:
        """Returns the answer; None if the service is away or refuses, which is counted."""
        try:
            answer = self._client.request(method, f"{self._system.service.url}{path}", **keywords)
        except httpx.TransportError:
            return None
        if answer.status_code == 429 or answer.status_code >= 500:
            self.refused[f"{answer.status_code} {answer.json().get('type', '')}"] += 1
            return None
        return answer


@dataclass
class Seen:
    """A job's row when it was last looked at."""

    state: str
    token: str | None
    heard_at: float
    ended_at: float | None
    attempts: int


@dataclass
class Watcher:
    """Looks at all rows: how long interrupted jobs lay still, and whether an end was changed."""

    database: Database
    rows: dict[str, Seen] = field(default_factory=dict)
    still_s: list[float] = field(default_factory=list)
    changed: set[str] = field(default_factory=set)

    def observe(self) -> None:
        """Reads all rows once."""
        query = select(
            Job.id,
            Job.state,
            Job.lease_token,
            Job.lease_expires_at,
            Job.ended_at,
            Job.attempts,
            now(),
        )
        with self.database.read() as session:
            rows = session.execute(query).all()
        for job, state, token, expires, ended, attempts, clock in rows:
            before = self.rows.get(job)
            heard = expires - DEFAULTS.lease_s if expires is not None else 0.0
            row = Seen(state, token, heard, ended, attempts)
            if before is not None and before.state in ENDED and row != before:
                self.changed.add(job)
            taken_over = before is not None and attempts > before.attempts > 0
            given_up = before is not None and before.state == "running" and state == "failed"
            if before is not None and (taken_over or given_up) and before.heard_at:
                self.still_s.append(clock - before.heard_at)
            self.rows[job] = row


@dataclass
class Killer:
    """Kills processes and starts them again."""

    system: System
    valkey: Valkey
    dice: random.Random = field(default_factory=lambda: random.Random(0))
    kills: Counter[str] = field(default_factory=Counter)

    def worker(self) -> None:
        """Kills a worker, one that computes if there is one."""
        busy = [worker for worker in self.system.workers if computes(worker)]
        victim = self.dice.choice(busy or self.system.workers)
        self.kills["worker" if busy else "idle worker"] += 1
        self.system.workers.remove(victim)
        victim.kill()
        self.system.start_worker()

    def service(self) -> None:
        """Kills the service; the next one has another port."""
        self.system.service.kill()
        self.system.restart_service()
        self.kills["service"] += 1

    def broker(self) -> None:
        """Kills the broker, which forgets all rings."""
        self.valkey.stop(signal.SIGKILL)
        self.valkey.start()
        self.kills["broker"] += 1


def computes(worker: App) -> bool:
    """Returns whether a worker has a child that computes."""
    return any("worker.child" in command_of(pid) for pid in descendants(worker.pid))


def shake(minutes: float) -> dict[str, Any]:
    """Runs the load and the kills. Returns the figures."""
    valkey = Valkey()
    with fresh_system(valkey) as system:
        for _ in range(WORKERS - 1):
            system.start_worker()
        database = system.database()
        with database.write() as session:
            keys = [create_key(session, f"t{n}", ("read", "submit")) for n in range(TENANTS)]
        stopping = threading.Event()
        tenants = [Tenant(system, key, stopping) for key in keys]
        watcher, killer = Watcher(database), Killer(system, valkey)
        for tenant in tenants:
            tenant.start()
        _kill_for(minutes * 60, killer, watcher)
        stopping.set()
        for tenant in tenants:
            tenant.join()
        _wait_for_ends(watcher)
        figures = _figures(tenants, watcher, database)
        database.close()
    return {"kills": dict(killer.kills), **figures}


def _kill_for(seconds: float, killer: Killer, watcher: Watcher) -> None:
    started = monotonic()
    plan = [(SERVICE_DIES_AT * seconds, killer.service), (BROKER_DIES_AT * seconds, killer.broker)]
    plan += [(at * KILL_EVERY_S, killer.worker) for at in range(1, int(seconds / KILL_EVERY_S) + 1)]
    for at, kill in sorted(plan, key=lambda pair: pair[0]):
        while monotonic() < started + at:
            watcher.observe()
            sleep(LOOK_EVERY_S)
        kill()


def _wait_for_ends(watcher: Watcher) -> None:
    """Waits until all jobs have ended, and one lease longer, so that slow workers report too."""

    def ended() -> bool:
        watcher.observe()
        return all(row.state in ENDED for row in watcher.rows.values())

    try:
        wait_until(ended, "all jobs have ended", ENDS_WITHIN_S)
    except AssertionError:
        return
    until = monotonic() + DEFAULTS.lease_s
    while monotonic() < until:
        watcher.observe()
        sleep(LOOK_EVERY_S)


def _figures(tenants: list[Tenant], watcher: Watcher, database: Database) -> dict[str, Any]:
    jobs = [tenant.final_job(location) for tenant in tenants for location in tenant.accepted]
    lost = [job for job in jobs if job["state"] == "failed" and is_lost(job)]
    done = [job for job in jobs if job["state"] == "done" and job["result"]]
    with database.read() as session:
        results = int(session.scalar(select(func.count()).select_from(Result)) or 0)
        ended = select(Job.ended_at - Job.created_at).where(Job.ended_at.is_not(None))
        took_s = list(session.scalars(ended))
    return {
        "accepted": len(jobs),
        "done": len(done),
        "worker_lost": len(lost),
        "attempts": dict(sorted(Counter(job["attempts"] for job in jobs).items())),
        "asked_again": sum(tenant.again for tenant in tenants),
        "refused": dict(sum((tenant.refused for tenant in tenants), Counter())),
        "interruptions": len(watcher.still_s),
        "still_s": {"median": _median(watcher.still_s), "most": max(watcher.still_s, default=0.0)},
        "answer_s": {"median": _median(took_s), "most": max(took_s, default=0.0)},
        "wrong": {
            "without an end, or failed otherwise": len(jobs) - len(done) - len(lost),
            "rows nobody was told of": len(watcher.rows.keys() - {job["id"] for job in jobs}),
            "without a row": len({job["id"] for job in jobs} - watcher.rows.keys()),
            "ended twice": len(watcher.changed),
            "answers without a job, or none": abs(results - len(done)),
        },
    }


def is_lost(job: dict[str, Any]) -> bool:
    """Returns whether a job failed as documented: as many workers ended as it has attempts."""
    named = job["error"]["type"].endswith(":worker-lost")
    return bool(named and job["attempts"] == DEFAULTS.max_attempts)


def _median(values: list[float]) -> float:
    return float(np.median(values)) if values else 0.0


def show(figures: dict[str, Any]) -> None:
    """Prints the figures as lines."""
    for name in ("kills", "accepted", "done", "worker_lost", "attempts", "asked_again", "refused"):
        print(f"{name.replace('_', ' ')}: {figures[name]}")
    print(
        f"interrupted: {figures['interruptions']} times; from the last heartbeat to the next "
        f"worker: median {figures['still_s']['median']:.1f} s, "
        f"longest {figures['still_s']['most']:.1f} s"
    )
    answer = figures["answer_s"]
    print(f"from question to end: median {answer['median']:.1f} s, most {answer['most']:.1f} s")
    print(f"wrong: {figures['wrong']}")


def main() -> int:
    """Runs, prints and stores; returns 1 if a promise was broken or nothing was interrupted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    minutes = parser.parse_args().minutes
    figures = {**heading("kills"), "minutes": minutes, **shake(minutes)}
    show(figures)
    store(figures, Path("out/bench/kills.json"))
    return 1 if any(figures["wrong"].values()) or not figures["interruptions"] else 0


if __name__ == "__main__":
    sys.exit(main())
