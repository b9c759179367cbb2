"""Random models on random clusters of several kinds: our answer against every other system's.

    python benchmarks/bench_mixed.py [FIRST CASES]

A case is a violation where another strategy that fits is faster than our answer. `gap` is how far
our answer is from the proven bound at most. Where nothing of ours fits, nothing else may either.
"""

from __future__ import annotations

import statistics
import sys
import time
from math import inf
from pathlib import Path
from typing import Any

from run import heading, store

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT))

from harness.models.mixed_cases import mixed_case  # noqa: E402
from shardwise.documents.comparison import ranked  # noqa: E402
from shardwise.peers import compare  # noqa: E402

CASES, FEW = 200, 20
"""Cases of this benchmark alone, and among all benchmarks."""
PROPOSALS = 300
ROUNDING = 1e-9


def run(first: int = 0, cases: int = FEW) -> dict[str, Any]:
    print(f"{'case':>5} {'devices':34} {'s':>6} {'ours ms':>9} {'gap':>6}  next")
    rows = [_row(seed) for seed in range(first, first + cases)]
    gaps = [row["gap"] for row in rows if row["gap"] is not None]
    seconds = [row["seconds"] for row in rows]
    violations = [row for row in rows if row["faster"]]
    figures = {
        "cases": len(rows),
        "violations": len(violations),
        "nothing_fits": sum(row["time_s"] is None for row in rows),
        "gap_median": statistics.median(gaps) if gaps else None,
        "gap_p90": _p90(gaps) if gaps else None,
        "gap_worst": max(gaps, default=None),
        "seconds_median": statistics.median(seconds),
        "seconds_p90": _p90(seconds),
        "proposals": PROPOSALS,
    }
    print(", ".join(f"{name} {value}" for name, value in figures.items()))
    for row in violations:
        print(f"violation: case {row['case']}: {row['faster']}")
    return {**figures, "rows": rows}


def _row(seed: int) -> dict[str, Any]:
    case = mixed_case(seed)
    started = time.monotonic()
    document = compare(
        case.graph, case.hardware, case.bundle, case.options, proposals=PROPOSALS, seed=seed
    )
    spent = time.monotonic() - started
    fitting = [(m.method, p.replayed_time_s or 0.0) for m, p in ranked(document) if p.feasible]
    ours = dict(fitting).get("shardwise")
    others = [one for one in fitting if one[0] != "shardwise"]
    limit = inf if ours is None else ours * (1.0 - ROUNDING)
    gap = document.certificate.epsilon if document.certificate else None
    row = {
        "case": seed,
        "devices": str(case.bundle),
        "micro_batches": list(case.options.micro_batches),
        "seconds": spent,
        "time_s": ours,
        "gap": gap,
        "methods": dict(fitting),
        "faster": {
            name: time_s / ours - 1.0 if ours else None for name, time_s in others if time_s < limit
        },
    }
    following = f"{others[0][0]} {others[0][1] / ours - 1.0:+.1%}" if ours and others else "-"
    print(
        f"{seed:5} {row['devices'][:34]:34} {spent:6.1f} {(ours or 0.0) * 1e3:9.3f} "
        f"{'-' if gap is None else f'{gap:.1%}':>6}  {following}",
        flush=True,
    )
    return row


def _p90(values: list[float]) -> float:
    return statistics.quantiles(values, n=10)[-1] if len(values) > 1 else values[0]


if __name__ == "__main__":
    figures = heading("bench-mixed")
    given = [int(argument) for argument in sys.argv[1:3]]
    figures["bench_mixed"] = run(*(given or (0, CASES)))
    store(figures, Path("out/bench/mixed.json"))
