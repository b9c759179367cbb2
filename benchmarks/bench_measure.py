"""Collectives measured here on gloo, and how well times between the measured sizes are predicted.

TensorOpt §3.2 reports 6 to 7 % for interpolated communication times. A profile is measured at 2^i;
right after it the same groups are timed at sizes in between. The noise of the machine is told
beside: how far a second timing of the same size is from the first.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from shardwise.hardware import GroupShape, collective_times, hardware_from_document

RANKS = (2, 4)
TIME_LIMIT_S = 45.0
LARGEST = "8MiB"
HELD_OUT = 1440
"""Held-out sizes are 1440 · 2^i: about √2 from the measured ones on both sides."""


def run() -> dict[str, Any]:
    """Per number of ranks and operation the median error at sizes in between."""
    return {f"{ranks} ranks": _one(ranks) for ranks in RANKS}


def _one(ranks: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        profiles = []
        for name, smallest in (("first", 1024), ("between", HELD_OUT), ("again", 1024)):
            target = Path(folder) / f"{name}.json"
            command = [sys.executable, "-m", "shardwise.measure", "--ranks", str(ranks), "--quiet"]
            command += ["--collectives", "--time-limit", str(TIME_LIMIT_S), "--max-size", LARGEST]
            command += ["--min-size", str(smallest), "-o", str(target)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            profiles.append(hardware_from_document(json.loads(target.read_text())))
    first, between, again = profiles
    errors: dict[str, list[float]] = {}
    noise: dict[str, list[float]] = {}
    for errors_of, other in ((errors, between), (noise, again)):
        for table in other.collectives:
            sizes = np.array(table.sizes_bytes)
            known = first.tables[(table.operation, 1, table.ranks_per_node, table.consecutive)]
            inside = sizes <= known.sizes_bytes[-1]
            shape = GroupShape(table.size, 1, table.size, 1, table.consecutive)
            predicted = collective_times(first, table.operation, sizes[inside], shape)
            measured = np.array(table.times_s)[inside]
            errors_of.setdefault(table.operation, []).extend(
                np.abs(predicted / measured - 1).tolist()
            )
    print(f"{ranks} ranks on {os.cpu_count()} cores: median |error| of time, and of a repetition")
    rows = {}
    for operation in errors:
        rows[operation] = {
            "points": len(errors[operation]),
            "median_error": float(np.median(errors[operation])),
            "median_noise": float(np.median(noise[operation])),
        }
        row = rows[operation]
        print(
            f"  {operation:16} {row['points']:4} sizes {row['median_error']:7.1%} "
            f"{row['median_noise']:7.1%}"
        )
    return rows


if __name__ == "__main__":
    print(json.dumps(run()))
