"""A sweep of random strategies (`sweep.py`) in a process of its own, and its results."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def swept(*arguments: str, timeout_s: float = 900.0) -> list[dict[str, Any]]:
    """Returns the results of a sweep with these arguments. Raises `AssertionError`, with the end of
    what it wrote, if it fails."""
    done = subprocess.run(
        [sys.executable, "-m", "harness.execute.sweep", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
