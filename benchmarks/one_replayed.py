"""One question answered by sums and by replayed time, in a process of its own; JSON in and out."""

from __future__ import annotations

import json
import resource
import sys
import time
from dataclasses import replace
from math import inf, isfinite
from statistics import median
from typing import Any

from shardwise.cost.options import Options
from shardwise.graph import read_graph
from shardwise.hardware import Devices, load_hardware
from shardwise.search.chosen import fastest, time_gap
from shardwise.search.fitting import search_fitting
from shardwise.search.search import Subject


def main() -> None:
    case = json.loads(sys.argv[1])
    graph, hardware = read_graph(case["path"]), load_hardware(case["hardware"])
    options = Options(
        recompute=case["recompute"],
        micro_batches=tuple(case["micro_batches"]),
        max_configurations=case["max_configurations"],
    )
    figures: dict[str, Any] = {}
    for name, overlap in (("sums", False), ("replayed", True)):
        walls, processor = [], []
        for _ in range(case["repeats"]):
            started, before = time.perf_counter(), _cpu_s()
            subject = Subject.of(graph)
            searches = search_fitting(
                subject, hardware, Devices.alike(case["gpus"]), replace(options, overlap=overlap)
            )
            walls.append(time.perf_counter() - started)
            processor.append(_cpu_s() - before)
        best = fastest(searches)
        figures[name] = {
            "wall_s": median(walls),
            "cpu_s": median(processor),
            "replayed_s": None if best is None else best.replayed_time_s,
            "micro_batches": None if best is None else best.search.micro_batches,
            "gap": None if best is None else time_gap(searches, best),
            "bound_s": _finite(min((s.proof.bound_s for s in searches if s.proof), default=inf)),
        }
    figures["peak_gib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps(figures))


def _finite(seconds: float) -> float | None:
    return seconds if isfinite(seconds) else None


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
