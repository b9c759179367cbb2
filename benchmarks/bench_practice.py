"""Every captured family on four machines, with all defaults: gaps, and whether anything beats them.

Targets: a gap of 1 % where memory is free and 2 % where it binds, in 9 of 10; no answer beaten by
what practitioners try, by strategies at random or by sums. As a script, arguments select rows:
`python benchmarks/bench_practice.py resnet-50 dgx-h100:64`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import graphs

from shardwise.capture.families import FAMILIES

ONE = Path(__file__).parent / "one_practice.py"
MACHINES = (
    ("dgx-h100", 8),
    ("dgx-h100", 64),
    ("dgx-a100-80gb", 16),
    ("dgx-v100-16gb", 16),
)
TIME_LIMIT_S = 120.0
SUMS_S = 30.0
DRAWS = 10_000
BEATEN = 1e-6
"""Relative: differences that rounding explains."""


def run(only: tuple[str, ...] = (), draws: int = DRAWS) -> dict[str, Any]:
    """Every row that `only` names, all without; printed as a table and answered as data."""
    print(
        f"{'family':16} {'hardware':14} {'GPUs':>4} {'step s':>8} {'A':>4} {'gap':>7} "
        f"{'memory':>6} {'baseline':>9} {'drawn':>8} {'sums':>8} "
        f"{'wall s':>6} {'CPU s':>6} {'GiB':>5}"
    )
    rows = [
        _measured(graphs.family_name(family.name), hardware, gpus, draws)
        for family in FAMILIES
        for hardware, gpus in MACHINES
        if _is_wanted(only, graphs.family_name(family.name), f"{hardware}:{gpus}")
    ]
    proven = [row for row in rows if row.get("gap") is not None]
    near = [row for row in proven if row["gap"] <= (0.02 if row["binds"] else 0.01)]
    print(f"within the target: {len(near)} of {len(proven)}; beaten: {_beaten(rows) or 'none'}")
    return {"rows": rows}


def _is_wanted(only: tuple[str, ...], *names: str) -> bool:
    families = [word for word in only if ":" not in word]
    machines = [word for word in only if ":" in word]
    family, machine = names
    return family in (families or [family]) and machine in (machines or [machine])


def _beaten(rows: list[dict[str, Any]]) -> list[str]:
    return [
        f"{row['family']} on {row['hardware']}:{row['gpus']} by {what}"
        for row in rows
        for what in ("baselines_s", "drawn_s", "sums_s")
        if row.get(what) is not None and row[what] < row["replayed_s"] * (1.0 - BEATEN)
    ]


def _measured(family: str, hardware: str, gpus: int, draws: int) -> dict[str, Any]:
    question = {
        "path": graphs.path(f"family:{family}"),
        "hardware": hardware,
        "gpus": gpus,
        "time_limit_s": TIME_LIMIT_S,
        "draws": draws,
        "sums": SUMS_S,
    }
    done = subprocess.run(
        [sys.executable, str(ONE), json.dumps(question)],
        check=False,
        capture_output=True,
        text=True,
    )
    row: dict[str, Any] = {"family": family, "hardware": hardware, "gpus": gpus}
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:]
        print(f"{family:16} {hardware:14} {gpus:4} failed: {' '.join(last)}", flush=True)
        return row | {"failed": " ".join(last)}
    row |= json.loads(done.stdout)
    if "replayed_s" not in row:
        print(f"{family:16} {hardware:14} {gpus:4} nothing fits", flush=True)
        return row
    print(
        f"{family:16} {hardware:14} {gpus:4} {row['replayed_s']:8.4f} {row['micro_batches']:4} "
        f"{row['gap']:7.2%} {'binds' if row['binds'] else 'free':>6} "
        f"{_excess(row, 'baselines_s'):>9} {_excess(row, 'drawn_s'):>8} "
        f"{_excess(row, 'sums_s'):>8} {row['wall_s']:6.1f} {row['cpu_s']:6.1f} "
        f"{row['peak_gib']:5.2f}",
        flush=True,
    )
    return row


def _excess(row: dict[str, Any], what: str) -> str:
    """Returns by how much something else is slower than the answer."""
    return "-" if row[what] is None else f"{row[what] / row['replayed_s'] - 1.0:+.1%}"


if __name__ == "__main__":
    run(tuple(sys.argv[1:]))
