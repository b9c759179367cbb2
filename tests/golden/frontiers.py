"""Golden frontiers of sums: run this file to rewrite them, then review the difference.

python tests/golden/frontiers.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness.answers import frontier
from shardwise.answers import Options
from shardwise.capture import shipped_graph
from shardwise.graph import read_graph
from shardwise.hardware import load_hardware

FOLDER = Path(__file__).parent
CASES = (
    ("vgg16", "dgx-v100-16gb", 2),
    ("vgg16", "pcie-v100-8", 4),
    ("gpt2", "dgx-a100-80gb", 2),
)
ROWS = 25


def path(case: tuple[str, str, int]) -> Path:
    return FOLDER / f"{case[0]}-{case[1]}-{case[2]}.json"


def compute(case: tuple[str, str, int]) -> dict[str, Any]:
    """The ends, the turning point and evenly spread points of a frontier."""
    model, hardware, gpus = case
    graph, machine = read_graph(shipped_graph(model)), load_hardware(hardware)
    eager = Options(overlap=False, framework="eager")
    document = frontier(graph, machine, gpus, eager)
    points = document["points"]
    count = min(ROWS, len(points))
    spread = {round(i * (len(points) - 1) / max(count - 1, 1)) for i in range(count)}
    shown = sorted(spread | {document["turning_point"]})
    return {
        "points": len(points),
        "turning_point": document["turning_point"],
        "exact": document["certificate"]["exact"],
        "rows": [
            [i, points[i]["memory_bytes"], points[i]["time_s"], points[i]["compute_s"]]
            for i in shown
        ],
    }


if __name__ == "__main__":
    for case in CASES:
        path(case).write_text(json.dumps(compute(case), indent=1) + "\n")
        print(path(case).name)
