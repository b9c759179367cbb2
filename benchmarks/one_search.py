"""One search in a process of its own: JSON in as the argument, JSON with its figures out.

The process is fresh, so that its peak memory is the search's (interpreter and numpy included).
"""

from __future__ import annotations

import json
import resource
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from harness.answers import curve
from shardwise.cost.options import Options
from shardwise.graph import Graph, read_graph
from shardwise.hardware import load_hardware
from shardwise.search.chosen import Chosen, time_gap
from shardwise.search.search import Search, Subject, search


def main() -> None:
    case = json.loads(sys.argv[1])
    graph = read_graph(case["path"])
    measure = _curve if case["question"] == "curve" else _search
    figures = measure(graph, case)
    figures["peak_gib"] = _peak_gib()
    print(json.dumps(figures))


def _peak_gib() -> float:
    """Peak memory of this process alone; `ru_maxrss` may start with that of its parent."""
    status = Path("/proc/self/status")
    if status.exists():
        (line,) = (s for s in status.read_text().splitlines() if s.startswith("VmHWM:"))
        return int(line.split()[1]) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def _search(graph: Graph, case: dict[str, Any]) -> dict[str, Any]:
    options = _options(case)
    cold, solve = [], []
    for _ in range(case["repeats"]):
        started = time.perf_counter()
        result = search(
            Subject.of(graph),
            load_hardware(case["hardware"]),
            case["gpus"],
            options,
            near_limit=case["question"] == "mini-time",
        )
        cold.append(time.perf_counter() - started)
        solve.append(result.solution.seconds)
    choices = [len(cost.time_s) for cost in result.problem.costs]
    return {
        "operators": len(graph.operators),
        "groups": len(choices),
        "choices_max": max(choices),
        "choices_mean": statistics.mean(choices),
        "axes": [axis.size for axis in result.problem.context.mesh.axes],
        "points": len(result.time_s),
        "certified": _certified(result, case["question"]),
        "solve_s": statistics.median(solve),
        "cold_s": statistics.median(cold),
    }


def _options(case: dict[str, Any]) -> Options:
    """Returns TensorOpt's space, which the targets are for, unless the case says otherwise."""
    return Options(overlap=False, **{"zero": (0,), **case["options"]})


def _certified(result: Search, question: str) -> float | None:
    if question == "mini-time":
        chosen = result.fastest_within(result.limit_bytes)
        return None if chosen is None else time_gap([result], Chosen(result, chosen))
    return 0.0 if result.solution.exact else float(result.solution.epsilon)


def _curve(graph: Graph, case: dict[str, Any]) -> dict[str, Any]:
    cold, solve = [], []
    for _ in range(case["repeats"]):
        started = time.perf_counter()
        hardware = load_hardware(case["hardware"])
        document = curve(graph, hardware, case["gpus"], _options(case))
        cold.append(time.perf_counter() - started)
        solve.append(document["search"]["seconds"])
    fitting = [point for point in document["points"] if point["feasible"]]
    return {
        "operators": len(graph.operators),
        "points": len(document["points"]),
        "fitting": len(fitting),
        "certified": max(point["gap"] for point in fitting),
        "solve_s": statistics.median(solve),
        "cold_s": statistics.median(cold),
    }


if __name__ == "__main__":
    main()
