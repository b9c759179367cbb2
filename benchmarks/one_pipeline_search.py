"""One frontier of pipelines in a process of its own: JSON in as the argument, figures out as JSON.

Seconds are those of all its cores, interpreter and imports left out.
"""

from __future__ import annotations

import json
import resource
import sys

import numpy as np

from shardwise.cost.options import Options, quiet
from shardwise.graph import read_graph
from shardwise.hardware import Devices, load_hardware
from shardwise.search.pipelines.certified import least_within
from shardwise.search.pipelines.search import PipelineSearch


def main() -> None:
    case = json.loads(sys.argv[1])
    options = Options(micro_batches=tuple(case["micro_batches"]))
    graph, hardware = read_graph(case["path"]), load_hardware(case["hardware"])
    begun = _cpu_s()
    search = PipelineSearch(graph, hardware, Devices.alike(case["gpus"]), options, quiet)
    pipelines, searched = search.frontier_with_questions(case["stages"])
    found = _cpu_s()
    peaks = np.array([float(pipeline.peak_bytes.max()) for pipeline in pipelines])
    steps = np.array([pipeline.step_s for pipeline in pipelines])
    least = least_within(searched, peaks, steps, options.epsilon, quiet)
    figures = {
        "gaps": (steps / least - 1.0).tolist(),
        "peaks_gib": (peaks / 2**30).tolist(),
        "steps_s": steps.tolist(),
        "search_s": found - begun,
        "proof_s": _cpu_s() - found,
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }
    print(json.dumps(figures))


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
