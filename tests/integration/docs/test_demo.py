"""Tests that the demo answers every question, runs a plan, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[3]


# `make demo` is a part of CI; `test_whole_way.py` guards what an agent does in it.
@pytest.mark.full
@pytest.mark.torch
def test_the_demo_answers_runs_and_stops(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "examples/demo.py"]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"^ +\d GPUs .* samples/s", done.stdout, re.M)) == 4
    assert re.search(r"^ +304 in ", done.stdout, re.M)
    assert re.search(r"^ +\$ .* minutes", done.stdout, re.M)
    assert re.search(r"none that fits saves more than", done.stdout)
    assert re.search(r"^ +step  predicted .* measured ", done.stdout, re.M)
    assert re.search(r"^ +shardwise_workers 1", done.stdout, re.M)
    assert list(tmp_path.iterdir()) == []
    left = [p.cmdline() for p in psutil.process_iter() if str(tmp_path) in " ".join(p.cmdline())]
    assert left == []
