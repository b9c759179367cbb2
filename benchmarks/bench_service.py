"""The service with real processes, load generator on the same machine: the targets of its issue.

On SQLite with the embedded broker and worker, and on PostgreSQL with Valkey (both from wheels,
PostgreSQL without fsync); one uvicorn process and one worker each. The rate limit is off.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from http_load import load, watchers

from harness.graph_builder import GraphBuilder
from harness.service.service_harness import Postgres, System, Valkey, descendants, new_database
from service.questions.ingest import upload_of
from service.store.graphs import add_graph
from shardwise.graph import Graph

GRAPHS = 10_000
FULL_PAGE = 200
"""Stored before the first look, so that both look at lists of the same length."""
CONNECTIONS = 8
SECONDS = 10.0
WATCHERS = 200
CACHED = {"graph": "shipped:vgg16", "hardware": "dgx-v100-16gb", "max_gpus": 8}
LONG = {"graph": "shipped:gpt2", "hardware": "dgx-h100", "max_gpus": 12}
CACHED_PATH = "/v1/curves?" + "&".join(f"{name}={value}" for name, value in CACHED.items())


def run() -> dict[str, Any]:
    """Both back ends, printed as a table and answered as data."""
    loads = Path("/proc/loadavg").read_text().split()[0]
    print(f"load average before: {loads}")
    figures: dict[str, Any] = {"load_average_before": float(loads), "graphs": GRAPHS}
    for kind, started in (("embedded", _embedded), ("postgres", _postgres)):
        with started() as system:
            figures[kind] = _measured(system)
        for name, value in figures[kind].items():
            print(f"{kind:9} {name:28} {_shown(value)}", flush=True)
    return figures


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_shown(part)}" for name, part in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@contextmanager
def _embedded() -> Iterator[System]:
    with tempfile.TemporaryDirectory() as folder:
        system = System(Path(folder), "embedded", {"rate_per_s": "0"})
        yield system
        system.stop()


@contextmanager
def _postgres() -> Iterator[System]:
    with tempfile.TemporaryDirectory() as folder:
        postgres, valkey = Postgres(Path(folder) / "postgres"), Valkey()
        postgres.start()
        valkey.start()
        with new_database(postgres.url()) as url:
            variables = {"database_url": url, "redis_url": valkey.url, "rate_per_s": "0"}
            system = System(Path(folder), "postgres", variables)
            yield system
            system.stop()
        valkey.stop()
        postgres.stop()


def _measured(system: System) -> dict[str, Any]:
    sleep(3.0)  # until what start-up does is over
    figures: dict[str, Any] = {"idle_memory_mib": _memory(system)}
    answer = system.client.post("/v1/curves", json=CACHED)
    system.service.ended(answer.headers["Location"], 60)
    port = int(system.service.url.rpartition(":")[2])
    etag = system.client.get(CACHED_PATH).headers["ETag"]
    asked: dict[str, Any] = {"connections": CONNECTIONS, "seconds": SECONDS}
    figures["cached_curve"] = asdict(load(port, CACHED_PATH, **asked))
    unchanged = f"If-None-Match: {etag}\r\n"
    figures["not_modified"] = asdict(
        load(port, CACHED_PATH, status=304, headers=unchanged, **asked)
    )
    figures["watchers"] = _watched(system, port)
    _store_graphs(system, range(FULL_PAGE))
    before = _latencies(system)
    started = perf_counter()
    _store_graphs(system, range(FULL_PAGE, GRAPHS))
    figures["stored"] = {"graphs": GRAPHS, "seconds": perf_counter() - started}
    after = _latencies(system)
    figures["ms_before_graphs"], figures["ms_after_graphs"] = before, after
    return figures


def _watched(system: System, port: int) -> dict[str, Any]:
    """Streams on one job that runs: all open before its end, all see it."""
    location = system.client.post("/v1/curves", json=LONG).headers["Location"]
    opened: list[float] = []
    last = watchers(port, f"{location}/events", WATCHERS, 60.0, opened)
    return {"streams": len(last), "saw_done": last.count(b"done"), "all_open_after_s": opened[0]}


def _latencies(system: System) -> dict[str, float]:
    """Medians of 50, milliseconds, one after the other on one connection."""
    newest = system.client.get("/v1/graphs?limit=1").json()["items"][0]["id"]
    calls: dict[str, Callable[[], Any]] = {
        "list": lambda: system.client.get("/v1/graphs"),
        "get": lambda: system.client.get(f"/v1/graphs/{newest}"),
        "curve": lambda: system.client.get(CACHED_PATH),
    }
    medians = {}
    for name, call in calls.items():
        times = []
        for _ in range(50):
            started = perf_counter()
            assert call().status_code == 200
            times.append((perf_counter() - started) * 1e3)
        medians[name] = statistics.median(times)
    return medians


def _store_graphs(system: System, numbers: range) -> None:
    """Small distinct graphs, stored in batches as the upload's handler does; not over HTTP."""
    database = system.database()
    for start in range(numbers.start, numbers.stop, 500):
        with database.write() as session:
            for number in range(start, min(start + 500, numbers.stop)):
                upload = upload_of(small_graph(number))
                add_graph(session, "local", upload.id, upload.canonical, upload.summary)
    database.close()


def small_graph(number: int) -> Graph:
    """A graph of one operator that differs from every other number's."""
    builder = GraphBuilder(f"small {number}")
    builder.input("x", 8, 32)
    builder.linear("one", "x", builder.parameter("w", 32, 32), "y")
    return builder.graph()


def _memory(system: System) -> dict[str, float]:
    """Proportional set size, MiB: of the service alone, and with all below it."""
    service = system.service.pid
    below = [*descendants(service)]
    for worker in system.workers:
        below += [worker.pid, *descendants(worker.pid)]
    alone = _pss(service)
    return {"service": alone, "with_workers_and_broker": alone + sum(map(_pss, below))}


def _pss(pid: int) -> float:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    return 0.0


if __name__ == "__main__":
    run()
