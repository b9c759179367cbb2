"""How search time grows: with layers, configurations, devices and epsilon. One table each.

`python benchmarks/plot_scaling.py` draws docs/pictures/scaling.svg from the results.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bench_search import LLAMA, Case, measure

LAYERS = (4, 16, 64, 256, 1024)
DEVICES = (2, 4, 8, 16, 32, 64)
CONFIGURATIONS = (50, 200, 1000, 4000)
EPSILONS = (0.05, 0.02, 0.01, 0.005, 0.002, 0.001)
HARDWARE = "dgx-h100"


def run() -> dict[str, Any]:
    """Four series of rows with their certified epsilon and times."""
    return {
        "layers": [_row(n, Case(f"gpt-{n}", HARDWARE, 16, 0.01, None)) for n in LAYERS],
        "devices": [_row(gpus, Case(LLAMA, HARDWARE, gpus, 0.01, None)) for gpus in DEVICES],
        "configurations": [
            _row(most, Case(LLAMA, HARDWARE, 64, 0.01, None), {"max_configurations": most})
            for most in CONFIGURATIONS
        ],
        "epsilon": [_row(e, Case("gpt-24", HARDWARE, 16, e, None)) for e in EPSILONS],
    }


def _row(x: float, case: Case, options: dict[str, Any] | None = None) -> dict[str, Any]:
    case = replace(case, repeats=3)
    row = {"x": x, **measure(case, {"epsilon": case.certified, **(options or {})})}
    print(
        f"{case.graph.removeprefix('shipped:'):10} {case.gpus:4} GPUs  "
        f"epsilon {case.certified:6.2%}"
        f"  groups {row['groups']:6}  K mean {row['choices_mean']:6.0f}  points {row['points']:5}"
        f"  solve {row['solve_s']:7.2f} s  cold {row['cold_s']:7.2f} s",
        flush=True,
    )
    return row


if __name__ == "__main__":
    run()
