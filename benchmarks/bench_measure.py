"""Collectives measured here on gloo, and how well times between measured sizes are predicted.

TensorOpt §3.2 reports 6 to 7 % for interpolated communication times. Sizes are measured √2 apart;
every second one is predicted from the others. The noise is printed next to it: half the range from
the 10th to the 90th percentile of a size's own repeats, over their median.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from shardwise.hardware import GroupShape, collective_times, hardware_from_document

RANKS = (2, 4)
TIME_LIMIT_S = 90.0
LARGEST = "8MiB"


def run() -> dict[str, Any]:
    """Per number of ranks and operation the median error at held-out sizes."""
    return {f"{ranks} ranks": _one(ranks) for ranks in RANKS}


def _one(ranks: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "profile.json"
        command = [sys.executable, "-m", "shardwise.measure", "--ranks", str(ranks), "--quiet"]
        command += ["--collectives", "--time-limit", str(TIME_LIMIT_S), "--max-size", LARGEST]
        command += ["--step", str(2**0.5), "-o", str(target)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        measured = hardware_from_document(json.loads(target.read_text()))
    errors: dict[str, list[float]] = {}
    noise: dict[str, list[float]] = {}
    for table in measured.collectives:
        kept = replace(
            table,
            sizes_bytes=table.sizes_bytes[::2],
            times_s=table.times_s[::2],
            p10_s=(),
            p90_s=(),
            repeats=(),
        )
        held_out = np.array(table.sizes_bytes[1:-1:2])
        shape = GroupShape(table.size, 1, table.size, 1, table.consecutive)
        known = replace(measured, collectives=(kept,))
        predicted = collective_times(known, table.operation, held_out, shape)
        times = np.array(table.times_s[1:-1:2])
        errors.setdefault(table.operation, []).extend(np.abs(predicted / times - 1).tolist())
        spread = np.subtract(table.p90_s, table.p10_s)[1:-1:2] / 2 / times
        noise.setdefault(table.operation, []).extend(spread.tolist())
    load = os.getloadavg()[0]
    print(f"{ranks} ranks on {os.cpu_count()} cores, load {load:.1f}: median |error|, median noise")
    rows: dict[str, Any] = {"load_1m": load}
    for operation, off in errors.items():
        row = {
            "held_out": len(off),
            "median_error": float(np.median(off)),
            "median_noise": float(np.median(noise[operation])),
        }
        rows[operation] = row
        print(
            f"  {operation:16} {row['held_out']:4} sizes {row['median_error']:7.1%} "
            f"{row['median_noise']:7.1%}"
        )
    return rows


if __name__ == "__main__":
    run()
