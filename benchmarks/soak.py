"""`make soak`: a mixed load for SOAK_MINUTES, PostgreSQL and Valkey, a worker killed every minute.

Real processes, load and servers on one machine. Of two workers one is killed with SIGKILL every
minute and started again at once; the other lives through the run, so that its memory can be told.
The command fails when a job is lost: after the load every job has ended, once.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from run import heading, store
from soak_load import ACTORS, WAITS, Load
from sqlalchemy import func, select

from harness.service.service_harness import App, Postgres, System, Valkey, new_database
from service.store.tables import ENDED, Job, Result

MINUTE_S = 60.0
SETTLES_S = 120.0
"""Not in the slopes: pools, caches and the allocator fill at first."""

ENDS_WITHIN_S = 600.0
"""A job that is queued when the load ends is lost unless it is computed within this time."""

LOOK_EVERY_S = 5.0


@dataclass
class Memory:
    """Resident memory of the processes that live through the run: (seconds, MiB)."""

    pids: dict[str, int]
    seen: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def sample(self, at_s: float) -> None:
        """Records the memory of each process once."""
        for name, pid in self.pids.items():
            self.seen.setdefault(name, []).append((at_s, rss_mib(pid)))

    def slope(self, name: str) -> float | None:
        """MiB an hour by least squares, without the first two minutes; None: too short a run."""
        kept = [(at, mib) for at, mib in self.seen[name] if at >= SETTLES_S]
        if len(kept) < 6:
            return None
        at, mib = np.array(kept).T
        return float(np.polyfit(at / 3600.0, mib, 1)[0])

    def during(self, name: str, minute: int) -> float:
        """The median of a minute."""
        low = minute * MINUTE_S
        return statistics.median(m for at, m in self.seen[name] if low <= at < low + MINUTE_S)


def rss_mib(pid: int) -> float:
    """Returns a process's resident set size, MiB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def soak(minutes: int) -> dict[str, Any]:
    """Runs the load. Returns the figures."""
    with fresh_system(concurrency="1") as system:
        system.start_worker()
        return _under_load(system, minutes)


@contextmanager
def fresh_system(valkey: Valkey | None = None, **settings: str) -> Iterator[System]:
    """PostgreSQL and Valkey (this one, if given), a service and a worker, all of their own."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        postgres, valkey = Postgres(folder / "postgres"), valkey or Valkey()
        postgres.start()
        stack.callback(postgres.stop)
        valkey.start()
        stack.callback(valkey.stop)
        url = stack.enter_context(new_database(postgres.url()))
        variables = {"database_url": url, "redis_url": valkey.url, **settings}
        system = System(folder, "postgres", variables)
        stack.callback(system.stop)
        yield system


def _under_load(system: System, minutes: int) -> dict[str, Any]:
    steady, other = system.workers
    memory = Memory({"service": system.service.pid, "worker": steady.pid})
    load = Load(system.service.url)
    load.prepare()
    started = monotonic()
    threads = [
        threading.Thread(target=load.act, args=(kind, *how), daemon=True)
        for kind, how in ACTORS.items()
    ]
    for thread in threads:
        thread.start()
    kills, loads = 0, []
    for number in count(1):
        sleep(max(0.0, started + number * LOOK_EVERY_S - monotonic()))
        at_s = monotonic() - started
        memory.sample(at_s)
        loads.append(float(Path("/proc/loadavg").read_text().split()[0]))
        if at_s > (kills + 0.5) * MINUTE_S:
            other = _killed(system, other)
            kills += 1
        if at_s >= minutes * MINUTE_S:
            break
    load.stopping.set()
    for thread in threads:
        thread.join()
    return {
        "minutes": minutes,
        "workers_killed": kills,
        "load_average": {"median": statistics.median(loads), "most": max(loads)},
        "per_minute": [_minute(load, memory, started, m) for m in range(minutes)],
        "rss_slope_mib_per_hour": {name: memory.slope(name) for name in memory.pids},
        "calls": dict(sorted(Counter(call.kind for call in load.calls).items())),
        "errors": dict(Counter(f"{c.kind}: {c.error}" for c in load.calls if c.error)),
        "jobs": _jobs(system, load),
    }


def _killed(system: System, worker: App) -> App:
    """Kills a worker and starts another in its place."""
    system.workers.remove(worker)
    worker.kill()
    return system.start_worker()


def _minute(load: Load, memory: Memory, started: float, minute: int) -> dict[str, Any]:
    low = started + minute * MINUTE_S
    calls = [call for call in load.calls if low <= call.at < low + MINUTE_S]
    timed = [call.seconds * 1e3 for call in calls if call.kind not in WAITS]
    p50, p99 = np.percentile(timed, [50, 99])
    return {
        "calls": len(calls),
        "p50_ms": float(p50),
        "p99_ms": float(p99),
        "errors": sum(call.error is not None for call in calls),
        **{f"{name}_rss_mib": memory.during(name, minute) for name in memory.pids},
    }


def _jobs(system: System, load: Load) -> dict[str, Any]:
    """Returns what became of the jobs, once all have ended or the time is up."""
    until = monotonic() + ENDS_WITHIN_S
    database = system.database()
    while True:
        with database.read() as session:
            states = dict(
                session.execute(select(Job.state, func.count()).group_by(Job.state)).all()
            )
            known = set(session.scalars(select(Job.id)))
            results = int(session.scalar(select(func.count()).select_from(Result)) or 0)
            again = int(session.scalar(select(func.count()).where(Job.attempts > 1)) or 0)
        unfinished = sum(number for state, number in states.items() if state not in ENDED)
        if not unfinished or monotonic() > until:
            break
        sleep(0.5)
    database.close()
    accepted = {location.rpartition("/")[2] for location in load.locations}
    return {
        "accepted": len(accepted),
        "states": states,
        "unfinished": unfinished,
        "without_a_row": len(accepted - known),
        "results": results,
        "computed_again_after_a_kill": again,
    }


def lost(figures: dict[str, Any]) -> int:
    """Counts the jobs that were accepted and have no end, or are done and have no answer."""
    jobs = figures["jobs"]
    unanswered = abs(jobs["states"].get("done", 0) - jobs["results"])
    return int(jobs["unfinished"] + jobs["without_a_row"] + unanswered)


def show(figures: dict[str, Any]) -> None:
    """Prints the table."""
    print("minute  calls  p50 ms  p99 ms  errors  service MiB  worker MiB")
    for number, row in enumerate(figures["per_minute"], 1):
        print(
            f"{number:6} {row['calls']:6} {row['p50_ms']:7.1f} {row['p99_ms']:7.1f} "
            f"{row['errors']:7} {row['service_rss_mib']:12.1f} {row['worker_rss_mib']:11.1f}"
        )
    for name, slope in figures["rss_slope_mib_per_hour"].items():
        print(f"{name}: {'run too short' if slope is None else f'{slope:+.1f} MiB/hour'}")
    average = figures["load_average"]
    print(f"load average: median {average['median']:.1f}, most {average['most']:.1f}")
    print(f"workers killed: {figures['workers_killed']}; errors: {figures['errors'] or 'none'}")
    print(f"jobs: {figures['jobs']}; lost: {lost(figures)}")


def main() -> int:
    """Soaks, prints and stores; returns 1 if a job is lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=int, default=int(os.environ.get("SOAK_MINUTES", "20")))
    minutes = parser.parse_args().minutes
    figures = heading("soak")
    figures["machine"]["nice"] = os.nice(0)
    figures |= soak(minutes)
    show(figures)
    store(figures, Path("out/bench/soak.json"))
    return 1 if lost(figures) else 0


if __name__ == "__main__":
    sys.exit(main())
