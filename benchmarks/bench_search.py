"""Search times on captured graphs: median of five, certified at 1 %.

K is the number of configurations of a group. `cold` is the whole answer from a read graph
(coarsening, costs, search); `solve` is the solver alone.
"""

from __future__ import annotations

import resource
import statistics
import time
from typing import Any

from shardwise.advise.options import Options
from shardwise.advise.search import Subject, search
from shardwise.capture import shipped_graph
from shardwise.graph import read_graph
from shardwise.hardware import load_hardware

CASES = (
    ("vgg16", "dgx-v100-16gb", 8, False),
    ("vgg16", "dgx-v100-16gb", 16, False),
    ("gpt2", "dgx-h100", 16, False),
    ("llama-8b", "dgx-h100", 16, False),
    ("llama-8b", "dgx-h100", 64, False),
    ("llama-8b", "dgx-h100", 64, True),
)
REPEATS = 5


def run() -> dict[str, Any]:
    rows = []
    print(
        f"{'model':10} {'GPUs':>4} {'question':9} {'groups':>6} {'K max':>5} "
        f"{'points':>6} {'certified':>9} {'solve s':>8} {'cold s':>8}"
    )
    for model, hardware, gpus, near in CASES:
        rows.append(_case(model, hardware, gpus, near))
        r = rows[-1]
        print(
            f"{model:10} {gpus:4} {r['question']:9} {r['groups']:6} {r['configurations_max']:5} "
            f"{r['points']:6} {r['certified']:9} {r['solve_s']:8.2f} {r['cold_s']:8.2f}"
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"peak memory of the process: {peak:.2f} GiB")
    return {"rows": rows, "peak_rss_gib": peak, "repeats": REPEATS}


def _case(model: str, hardware: str, gpus: int, near: bool) -> dict[str, Any]:
    graph = read_graph(shipped_graph(model))
    profile = load_hardware(hardware)
    cold, solve = [], []
    for _ in range(REPEATS):
        started = time.perf_counter()
        found = search(Subject.of(graph), profile, gpus, Options(), near_limit=near)
        cold.append(time.perf_counter() - started)
        solve.append(found.solution.seconds)
    solution = found.solution
    if solution.exact:
        certified = "exact"
    elif near:
        bound = (solution.time_lower_bound_s or 0.0) + found.problem.fixed_time_s
        chosen = found.fastest_within(found.limit_bytes)
        certified = "unfit" if chosen is None else f"{found.time_s[chosen] / bound - 1:.2%}"
    else:
        certified = f"{solution.epsilon:.2%}"
    return {
        "model": model,
        "hardware": hardware,
        "gpus": gpus,
        "question": "mini-time" if near else "frontier",
        "groups": len(found.problem.costs),
        "configurations_max": max(len(c.time_s) for c in found.problem.costs),
        "points": len(solution.memory_bytes),
        "certified": certified,
        "solve_s": statistics.median(solve),
        "cold_s": statistics.median(cold),
    }
