"""Every command of docs/schedulers.md runs, in the page's order, in one folder."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from harness.schedulers.fake_slurm import FakeSbatch
from harness.service.service_harness import ROOT, Service

pytestmark = [pytest.mark.full, pytest.mark.needs("curl")]

PAGE = (ROOT / "docs" / "schedulers.md").read_text("utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def programs(folder: Path) -> FakeSbatch:
    """`shardwise`, `python` and `sbatch` by their names."""
    fake = FakeSbatch(folder)
    for name, command in (("python", ""), ("shardwise", "-P -m shardwise.cli.main ")):
        path = folder / name
        path.write_text(f'#!/bin/sh\nexec {sys.executable} {command}"$@"\n')
        path.chmod(0o755)
    return fake


def test_every_command_of_the_page_runs(tmp_path: Path) -> None:
    fake = programs(tmp_path / "bin")
    work = tmp_path / "work"
    shutil.copytree(ROOT / "deploy", work / "deploy")
    (tmp_path / "service").mkdir()
    service = Service(tmp_path / "service")
    environment = {
        "PATH": f"{fake.folder}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "PYTHONPATH": str(ROOT),
        "U": service.url,
    }
    try:
        for kind, text in BLOCKS:
            command = {"sh": ["sh", "-eu", "-c", text], "python": ["python", "-c", text]}.get(kind)
            if command is None:
                assert kind == "yaml" and yaml.safe_load(text), f"nothing runs ```{kind}"
                continue
            done = subprocess.run(
                command, cwd=work, env=environment, capture_output=True, text=True,
                timeout=500, check=False,
            )  # fmt: skip
            assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
    finally:
        service.stop()
    written = {path.name for path in work.iterdir()}
    assert written >= set(re.findall(r"> (\S+\.\S+)$", PAGE, re.MULTILINE))
    assert set(json.loads((work / "both.json").read_text())) == {"v100", "a100-80gb"}
    script, wrapped = fake.calls
    assert script == ["train.sbatch", "train.py", "--epochs", "3"]
    assert wrapped == ["--nodes=1", "--ntasks-per-node=1", "--gres=gpu:8",
                       "--comment=shardwise: advised nodes=1 gres=gpu:8 for shipped:gpt2 "
                       "on dgx-v100-16gb", "--time=1:00:00", "train.sbatch",
                       "train.py"]  # fmt: skip
    trainer = yaml.safe_load((work / "patched.yaml").read_text())["spec"]["trainer"]
    assert trainer["numNodes"] * trainer["numProcPerNode"] == 8
    assert (work / "cluster.png").read_bytes().startswith(b"\x89PNG")
    cluster = json.loads((work / "cluster.json").read_text())
    assert [row["policy"] for row in cluster["policies"]] == [
        "requests", "equal", "curves", "curves-fair", "curves-left",
    ]  # fmt: skip
