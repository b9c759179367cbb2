"""No Docker engine is to be had in CI: what compose would start runs as processes instead."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user reaches; pytest's own are closed to others."""
    folder = Path(tempfile.mkdtemp(prefix="shardwise-compose-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.full
@pytest.mark.needs("prometheus")
def test_what_compose_would_start_runs(open_folder: Path) -> None:
    """Schema, keys, service, worker, agent and Prometheus come up healthy, answer, and stop."""
    namespaces = ["unshare", "--net", "--mount", "--fork", "--pid", "--mount-proc", "--kill-child"]
    if os.geteuid() != 0:
        namespaces[1:1] = ["--user", "--map-root-user"]
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [*namespaces, sys.executable, "-m", "harness.deploy.compose_runner", str(open_folder)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=480,
    )
    logs = {p.name: p.read_text()[-1500:] for p in open_folder.glob("*.log")}
    assert done.returncode == 0, (done.stderr[-3000:], logs)
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["curve"] == 4
    assert report["agents"] == 1
    assert report["webhook"] == 201
    assert {"shardwise", "shardwise-curves", "shardwise-worker"} <= {*report["scraped"]}
    ours = ("service", "worker", "agent")
    assert {report["codes"][name] for name in ours} == {0}
    if report["switched"]:
        assert {report["users"][name] for name in ours} == {10001}
