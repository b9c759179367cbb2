"""Environments of their own for the schedulers that read our documents, kept between runs.

They need versions of their own (numpy 1.23 for AdaptDL), so they never share one with us. The
folder is named after the pinned requirements and the Python; a half-made one is rebuilt. There
is no way to skip: without a network and without the folder the test fails.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).parent / "scripts"
VARIABLE = "SHARDWISE_TEST_ENVIRONMENTS"
INSTALL_S = 600.0


def folder() -> Path:
    """Returns where they are kept: the variable's folder, else the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get(VARIABLE) or cache / "shardwise-test-environments")


class Environment:
    """A virtual environment with pinned packages: `bare` come without what they depend on."""

    def __init__(self, name: str, *pinned: str, bare: tuple[str, ...] = ()) -> None:
        assert all("==" in one for one in (*pinned, *bare)), "pin every version"
        text = f"{sys.version} {pinned} {bare}"
        place = folder()
        place.mkdir(parents=True, exist_ok=True)
        self.path = place / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
        with (place / f"{self.path.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (self.path / "made").exists():
                shutil.rmtree(self.path, ignore_errors=True)
                venv.create(self.path, with_pip=True)
                self._install(*pinned)
                self._install("--no-deps", *bare)
                (self.path / "made").touch()

    @property
    def python(self) -> str:
        return str(self.path / "bin" / "python")

    def _install(self, *packages: str) -> None:
        command = [self.python, "-m", "pip", "install", "--quiet", "--no-input",
                   "--disable-pip-version-check", *packages]  # fmt: skip
        if any("==" in package for package in packages):
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=INSTALL_S, check=False
            )
            assert done.returncode == 0, f"{self.path.name}: {done.stderr[-2000:]}"

    def run(self, script: str, given: Any, home: Path, **variables: str) -> Any:
        """Returns what a script of `scripts/` prints as JSON, given JSON on standard input."""
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "PYTHONPATH": str(ROOT),
            "PYTHONWARNINGS": "ignore",
            **variables,
        }
        done = subprocess.run(
            [self.python, str(SCRIPTS / script)], input=json.dumps(given), cwd=home,
            capture_output=True, text=True, env=environment, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout.splitlines()[-1])


QUIET = {"SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}


def skypilot() -> Environment:
    return Environment("skypilot", "skypilot==0.14.1")


def ray_environment() -> Environment:
    """Returns Ray with what it needs at run time, without a dashboard."""
    return Environment(
        "ray", "click==8.1.8", "filelock==3.16.1", "jsonschema==4.23.0", "msgpack==1.1.0",
        "packaging==24.2", "protobuf==5.29.3", "pyyaml==6.0.2", "requests==2.32.3",
        "pyarrow==18.1.0", "fsspec==2024.12.0", "pandas==2.2.3", "pydantic==2.10.4",
        bare=("ray==2.60.0",),
    )  # fmt: skip
