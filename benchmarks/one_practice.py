"""One family on one machine, with all defaults: the answer, its gap, and what might beat it.

Beside the answer: the practitioners' strategies, each with its best number of micro-batches;
strategies drawn at random, the best of them improved; the fastest by sums that fits.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from dataclasses import replace
from math import inf, isfinite
from typing import Any

import numpy as np

from shardwise.cost.options import Options
from shardwise.errors import ShardwiseError
from shardwise.graph import read_graph
from shardwise.hardware import Devices, load_hardware
from shardwise.peers.practitioners import best_of_counts
from shardwise.search.chosen import Chosen, fastest, time_gap
from shardwise.search.fitting import search_fitting
from shardwise.search.search import Search, Subject, search

SEED = 20
TOGETHER = 64
"""Strategies that are replayed at a time."""


def main() -> None:
    case = json.loads(sys.argv[1])
    subject, hardware = Subject.of(read_graph(case["path"])), load_hardware(case["hardware"])
    started, before = time.perf_counter(), _cpu_s()
    options = Options(time_limit_s=case["time_limit_s"])
    searches = search_fitting(subject, hardware, Devices.alike(case["gpus"]), options)
    figures: dict[str, Any] = {"wall_s": time.perf_counter() - started, "cpu_s": _cpu_s() - before}
    best = fastest(searches)
    if best is not None:
        figures |= _answer(searches, best)
        figures["baselines_s"], figures["baseline"] = _baselines(searches)
        figures["drawn_s"] = _best_drawn(best, case["draws"])
        figures["sums_s"] = _by_sums(subject, best, case["sums"])
    figures["peak_gib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps({key: _finite(value) for key, value in figures.items()}))


def _answer(searches: list[Search], best: Chosen) -> dict[str, Any]:
    free_s = min(float(s.replayed.time_s.min(initial=inf)) for s in searches)
    return {
        "replayed_s": best.replayed_time_s,
        "micro_batches": best.search.micro_batches,
        "gap": time_gap(searches, best),
        "binds": free_s < best.replayed_time_s,
    }


def _baselines(searches: list[Search]) -> tuple[float, str]:
    """Returns the fastest strategy of practitioners that fits, and its name."""
    begun = [search for search in searches if len(search.time_s)]
    limit = begun[0].limit_bytes
    fitting = [
        (one.step.time_s, one.practice.label)
        for one in best_of_counts([search.replayer for search in begun], limit)
        if one.step.peak_bytes <= limit
    ]
    return min(fitting, default=(inf, "none"))


def _best_drawn(best: Chosen, draws: int) -> float:
    """Returns the fastest of random strategies that fits: half drawn, half changes of the best."""
    search, generator = best.search, np.random.default_rng(SEED)
    costs = search.problem.costs
    kinds = {id(cost): kind for kind, cost in enumerate({id(c): c for c in costs}.values())}
    kind = np.array([kinds[id(cost)] for cost in costs])
    counts = np.array([len(cost.time_s) for cost in costs])
    fastest_s, known = inf, None
    for drawn in range(0, draws, TOGETHER):
        if known is None or drawn < draws // 2:
            rows = generator.random((TOGETHER, len(kinds)))[:, kind]
            choices = (rows * counts).astype(np.uint32)
        else:
            choices = np.repeat(known[None, :], TOGETHER, axis=0)
            for one in choices:
                some = kind == generator.integers(len(kinds))
                one[some] = generator.integers(counts[some][0])
        edges = _any_alternatives(search, choices)
        steps = search.replayer.replay(choices, edges)
        times = np.where(steps.peak_bytes <= search.limit_bytes, steps.time_s, inf)
        if times.min() < fastest_s or known is None:
            fastest_s, known = float(times.min()), choices[int(times.argmin())]
    return fastest_s


def _any_alternatives(search: Search, choices: np.ndarray) -> np.ndarray:
    """Returns the least sums of alternatives of every edge, (strategies, edges)."""
    edges = np.zeros((len(choices), len(search.problem.edges)), dtype=np.uint32)
    for e, edge in enumerate(search.problem.edges):
        table = edge.table
        exists = np.arange(table.kept.shape[2]) < table.count[..., None]
        least = np.where(exists, table.time_s, inf).argmin(axis=2)
        edges[:, e] = least[
            table.rows[choices[:, edge.source]], table.columns[choices[:, edge.target]]
        ]
    return edges


def _by_sums(subject: Subject, best: Chosen, limit_s: float) -> float | None:
    """Returns the fastest replayed of the sums that fit, with as many micro-batches."""
    first = best.search
    options = replace(Options(), overlap=False, recompute="auto", time_limit_s=limit_s)
    try:
        sums = search(
            subject,
            first.hardware,
            first.mesh.gpus,
            options,
            near_limit=True,
            micro_batches=first.micro_batches,
        )
    except ShardwiseError:
        return None
    return float(np.where(sums.fits, sums.replayed.time_s, inf).min(initial=inf))


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not isfinite(value) else value


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
