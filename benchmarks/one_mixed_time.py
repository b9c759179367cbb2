"""One plan on devices of several kinds, in a process of its own: JSON in as the argument, JSON out.

Everything on one core: one thread of the solver's, and one of numpy's libraries where the caller
sets `OMP_NUM_THREADS`.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from shardwise.answers import Options, plan
from shardwise.errors import ShardwiseError
from shardwise.graph import read_graph
from shardwise.hardware import load_hardware


def main() -> None:
    case = json.loads(sys.argv[1])
    graph, hardware = read_graph(case["path"]), load_hardware(case["hardware"])
    # The program that docs/mixed.md's figures are about.
    options = Options(threads=1, framework="eager", **case["options"])
    started, began = time.monotonic(), time.process_time()
    figures: dict[str, Any] = {}
    try:
        answer = plan(graph, hardware, case["gpus"], options=options)
        figures = {
            "time_s": answer.predicted.replayed_time_s,
            "gap": answer.predicted.gap,
            "micro_batches": answer.micro_batches,
            "status": answer.certificate.status,
        }
    except ShardwiseError as reason:
        figures = {"reason": str(reason)}
    figures["wall_s"] = time.monotonic() - started
    figures["cpu_s"] = time.process_time() - began
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
