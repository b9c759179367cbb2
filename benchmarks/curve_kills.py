"""`make soak`: a curve of 64 counts, a worker killed every 30 s; are all counts known, once?

Two workers on PostgreSQL and Valkey with default settings. One client polls for the curve as a
scheduler does. Every `--every` seconds the worker that computes is killed with SIGKILL, and another
one is started. `--every` and `--lease` together make a shorter run of the same.

The command fails when a count is missing in the end, one that was known is computed again, more
counts were begun than there are counts and kills, or nothing was killed while it computed.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).parents[1]))

from kills import LOOK_EVERY_S, WORKERS, computes
from run import heading, store
from soak import fresh_system
from sqlalchemy import select

from harness.service.service_harness import System
from service.store.database import Database
from service.store.tables import CurvePoint, Job

PATIENCE_S = 1800.0


@dataclass
class Points:
    """All that is seen of the points of the curve: how often each was begun, and stored."""

    database: Database
    begun: dict[str, int] = field(default_factory=dict)
    known_at: dict[str, float] = field(default_factory=dict)
    again: set[str] = field(default_factory=set)

    def observe(self) -> int:
        """Reads all rows once. Returns how many points are known."""
        is_known = CurvePoint.content.is_not(None)
        query = select(CurvePoint.point_id, is_known, CurvePoint.attempts, CurvePoint.changed_at)
        with self.database.read() as session:
            rows = session.execute(query).all()
        for point, known, attempts, changed_at in rows:
            before = self.begun.get(point, 0)
            self.begun[point] = max(before, attempts)
            if point in self.known_at and (attempts > before or changed_at > self.known_at[point]):
                self.again.add(point)
            if known:
                self.known_at.setdefault(point, changed_at)
        return len(self.known_at)


def kill_one(system: System, kills: Counter[str]) -> None:
    """Kills the worker that computes, or one that waits, and starts another."""
    busy = [worker for worker in system.workers if computes(worker)]
    victim = (busy or system.workers)[0]
    kills["computing" if busy else "waiting"] += 1
    system.workers.remove(victim)
    victim.kill()
    system.start_worker()


def shake(question: dict[str, Any], every_s: float, lease_s: float) -> dict[str, Any]:
    """Has the curve computed under kills. Returns the figures."""
    settings = {"concurrency": "1", "solve_time_s": str(PATIENCE_S), "lease_s": str(lease_s)}
    with fresh_system(**settings) as system:
        for _ in range(WORKERS - 1):
            system.start_worker()
        database = system.database()
        points, kills, said = Points(database), Counter[str](), -1
        began = monotonic()
        kill_at = began + every_s
        while (answer := _asked(system, question)).status_code == 202:
            known = points.observe()
            if known != said:
                print(f"{monotonic() - began:6.1f} s: {known} known, {kills.total()} kills")
                said = known
            if monotonic() > kill_at:
                kill_at += every_s
                kill_one(system, kills)
            if monotonic() - began > PATIENCE_S:
                raise TimeoutError(f"the curve was not known within {PATIENCE_S:g} s")
            sleep(LOOK_EVERY_S)
        took_s = monotonic() - began
        answer.raise_for_status()
        points.observe()
        with database.read() as session:
            jobs = session.scalars(select(Job)).all()
        database.close()
    return {
        "kills": dict(kills),
        "took_s": took_s,
        "counts": [point["gpus"] for point in answer.json()["points"]],
        "missing": answer.json().get("missing", []),
        "begun": sum(points.begun.values()),
        "known_again": len(points.again),
        "jobs": len(jobs),
        "attempts_of_jobs": sum(job.attempts for job in jobs),
    }


def _asked(system: System, question: dict[str, Any]) -> httpx.Response:
    """Asks as a scheduler does that polls."""
    return system.client.get("/v1/curves", params=question)


def wrong(figures: dict[str, Any], counts: int) -> list[str]:
    """Returns what must not be."""
    lines = []
    if figures["counts"] != list(range(1, counts + 1)) or figures["missing"]:
        lines.append(f"counts {figures['counts']}, missing {figures['missing']}")
    if figures["known_again"]:
        lines.append(f"{figures['known_again']} counts were known and computed again")
    kills = sum(figures["kills"].values())
    if not counts <= figures["begun"] <= counts + kills:
        lines.append(f"{figures['begun']} counts were begun for {counts} and {kills} kills")
    if not figures["kills"].get("computing"):
        lines.append("nothing was killed while it computed: ask for more")
    return lines


def main() -> int:
    """Runs, prints and stores; returns 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graph", default="shipped:gpt2")
    parser.add_argument("--hardware", default="dgx-h100")
    parser.add_argument("--counts", type=int, default=64)
    parser.add_argument("--every", type=float, default=30.0, help="seconds between kills")
    parser.add_argument("--lease", type=float, default=30.0, help="the workers' lease, seconds")
    args = parser.parse_args()
    question = {"graph": args.graph, "hardware": args.hardware, "max_gpus": args.counts}
    figures = {
        **heading("curve kills"), **vars(args), **shake(question, args.every, args.lease)
    }  # fmt: skip
    print(
        f"{args.graph} on {args.hardware}, 1 to {args.counts} GPUs, a kill every {args.every:g} s, "
        f"leases of {args.lease:g} s: {len(figures['counts'])} counts known in "
        f"{figures['took_s']:.0f} s; killed {figures['kills']}; begun {figures['begun']} counts, "
        f"known and computed again {figures['known_again']}; {figures['jobs']} jobs, "
        f"{figures['attempts_of_jobs']} attempts"
    )
    lines = wrong(figures, args.counts)
    for line in lines:
        print(f"WRONG: {line}")
    store({**figures, "counts": len(figures["counts"])}, Path("out/bench/curve_kills.json"))
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
