"""CPU seconds of searches over pipelines, next to their targets, and the gaps that are proven.

Each case runs in a process of its own, which is ended at ten times its target. What a frontier
without pipelines takes is not counted. A word as argument names cases: those with it in the graph's
name.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import graphs

HERE = Path(__file__).parent
ONE_SEARCH = HERE / "one_pipeline_search.py"
LONGEST = 10


@dataclass(frozen=True)
class Case:
    """A frontier of pipelines, with its targets: CPU seconds, GiB, and the gap of every point."""

    graph: str
    hardware: str
    gpus: int
    stages: tuple[int, ...]
    micro_batches: tuple[int, ...]
    target_s: float | None
    target_gib: float | None = None
    target_gap: float | None = None


CASES = (
    Case("shipped:gpt2", "l4", 4, (2, 4), (4, 8, 16), None),
    Case("shipped:llama-8b", "dgx-h100", 64, (4,), (8, 16), None),
    Case("shipped:llama-8b", "dgx-h100", 64, (2, 4, 8), (), 60.0, target_gap=0.02),
    Case("family:llama-3-70b", "dgx-h100*32", 256, (2, 4, 8, 16), (), 180.0, 4.0),
    Case("gpt-1024", "dgx-h100*2", 16, (2, 4, 8, 16), (), 120.0),
)


def run(only: str = "") -> dict[str, Any]:
    """Every case, printed as a table and answered as data."""
    print(
        f"{'graph':10} {'GPUs':>4} {'stages':9} {'points':>6} {'gap':>13} {'search s':>8} "
        f"{'proof s':>8} {'target':>6} {'GiB':>5}"
    )
    return {"rows": [_measured(case) for case in CASES if only in case.graph]}


def _measured(case: Case) -> dict[str, Any]:
    name = case.graph.removeprefix("shipped:")
    stages = ",".join(map(str, case.stages))
    row = {**asdict(case), **_figures(case)}
    if row["ended"]:
        print(f"{name:10} {case.gpus:4} {stages:9} ended after {row['ended']:.0f} s", flush=True)
    else:
        gaps = f"{min(row['gaps']):.1%} … {max(row['gaps']):.1%}" if row["gaps"] else "-"
        print(
            f"{name:10} {case.gpus:4} {stages:9} {len(row['gaps']):6} {gaps:>13} "
            f"{row['search_s']:8.1f} {row['proof_s']:8.1f} {case.target_s or '-':>6} "
            f"{row['peak_gib']:5.2f}",
            flush=True,
        )
    return row


def _figures(case: Case) -> dict[str, Any]:
    """Returns the figures of a case, `ended` with the seconds after which it was ended, or None."""
    question = {"path": graphs.path(case.graph), **asdict(case)}
    limit_s = LONGEST * (case.target_s or 60.0)
    try:
        done = subprocess.run(
            [sys.executable, str(ONE_SEARCH), json.dumps(question)],
            check=True,
            capture_output=True,
            text=True,
            timeout=limit_s,
        )
    except subprocess.TimeoutExpired:
        return {"ended": limit_s}
    figures: dict[str, Any] = json.loads(done.stdout)
    return {"ended": None, **figures}


if __name__ == "__main__":
    run(*sys.argv[1:])
