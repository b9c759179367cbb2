"""Galvatron's dynamic-programming core on a chain: `peer_galvatron.py PROBLEM CAPS`.

The core (`dynamic_programming_core`, C++) fills f[v][s], the least time of the layers so far within
v units of memory when the last takes strategy s, for every whole v up to the cap. A unit is one
byte of the problem file here, one MB in Galvatron. One call answers one cap; its tables are
rebuilt for each, as in Galvatron, outside the time that is reported.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import json
import sys
import time
from pathlib import Path

import galvatron_dp_core
import numpy as np

REPEATS = 3
LONG = 3e9
"""Steps of the core (layers x units x strategies squared) above which it is asked once."""


def main() -> None:
    problem, caps = sys.argv[1:]
    document = json.loads(Path(problem).read_text())
    memory, own, between = chain(document)
    answers = [fastest(memory, own, between, int(cap)) for cap in json.loads(caps)]
    version = importlib.metadata.version("hetu-galvatron")
    print(json.dumps({"version": f"hetu-galvatron {version}", "answers": answers}))


def chain(document):
    """Memory (L, S), time (L, S) and the time between neighbours (L, S, S), row 0 free."""
    operators, edges = document["operators"], document["edges"]
    memory = np.array([[c["memory_bytes"] for c in o["choices"]] for o in operators])
    own = np.array([[c["time_s"] for c in o["choices"]] for o in operators])
    assert (memory >= 1).all(), "a layer without memory breaks the core's updates in place"
    assert (memory == memory.round()).all()
    names = [o["name"] for o in operators]
    assert [(e["source"], e["target"]) for e in edges] == list(itertools.pairwise(names))
    between = np.zeros((len(operators), own.shape[1], own.shape[1]))
    for layer, edge in enumerate(edges, start=1):
        cells = edge["choices"]
        assert all(len(cell) == 1 and cell[0]["memory_bytes"] == 0 for row in cells for cell in row)
        between[layer] = [[cell[0]["time_s"] for cell in row] for row in cells]
    return memory.astype(np.int32), own, between


def fastest(memory, own, between, cap):
    """The least time within `cap`, and the seconds of each call."""
    layers, strategies = memory.shape
    seconds = []
    for _ in range(REPEATS if layers * cap * strategies**2 < LONG else 1):
        best = np.zeros((cap + 1, strategies))
        mark = np.full((layers, cap + 1, strategies), -1, dtype=np.int32)
        chosen = {1: np.full(layers, -1, dtype=np.int32)}
        started = time.perf_counter()
        total, left = galvatron_dp_core.dynamic_programming_core(
            layers, cap + 1, strategies, memory, mark, best, between, own, {1: 0}, {1: 0.0}, chosen
        )
        seconds.append(time.perf_counter() - started)
    fits = np.isfinite(total[1])
    return {
        "cap_bytes": cap,
        "time_s": total[1] if fits else None,
        "memory_bytes": cap - left[1] if fits else None,
        "seconds": seconds,
    }


if __name__ == "__main__":
    main()
