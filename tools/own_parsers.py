"""Gives the files that are written for trainers to the trainers' own parsers.

`python -m tools.own_parsers [FOLDER]` installs torchtitan, megatron-core and DeepSpeed in an
environment of their own, `.venv-trainers`, which takes torch and pytest from this one, and runs
tests/unit/trainers/test_own_parsers.py there. Where no package can be had it says so, and nothing
is checked. The parsers of Megatron-LM and of today's nanotron are in no package: put clones of them
on PYTHONPATH (Megatron-LM's core_v0.16.1, the last for this Python, and nanotron's src).
"""

from __future__ import annotations

import os
import site
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEST = "tests/unit/trainers/test_own_parsers.py"
BUILD = ("setuptools", "wheel")
PACKAGES = (
    *("torchtitan==0.3.0", "tyro", "docstring-parser", "typeguard", "torchdata", "einops"),
    *("torch_checkpointing", "spmd_types==0.2.3", "datasets<4.8.0", "pyarrow", "multiprocess"),
    *("dill", "xxhash", "fsspec", "pandas", "aiohttp", "wandb"),
    *("megatron-core==0.16.1", "deepspeed==0.19.8", "hjson", "py-cpuinfo", "ninja", "msgpack"),
    "dacite",
    *("pydantic", "pydantic-core", "annotated-types", "typing-inspection"),
)
"""The trainers and what their configurations import; torch is that of this environment."""


def made(folder: Path) -> str | None:
    """Makes the environment unless it is there; returns what is wrong, None if nothing is."""
    finished = folder / ".made"
    if finished.exists() and finished.read_text("utf-8") == "\n".join(PACKAGES):
        return None
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    (packages,) = folder.glob("lib/python3*/site-packages")
    (packages / "base.pth").write_text("\n".join(site.getsitepackages()), "utf-8")
    # Packages of the environment below are left as they are, and none is needed that is not listed.
    pip = [str(folder / "bin" / "pip"), "install", "--quiet", "--no-deps"]
    for more in (BUILD, ("--no-build-isolation", *PACKAGES)):
        environment = {**os.environ, "DS_BUILD_OPS": "0"}
        ended = subprocess.run([*pip, *more], env=environment, capture_output=True, text=True)
        if ended.returncode:
            return (ended.stderr.strip().splitlines() or ["pip failed"])[-1]
    finished.write_text("\n".join(PACKAGES), "utf-8")
    return None


def main(arguments: list[str]) -> int:
    """Runs the test where the trainers can be installed; returns its exit code."""
    folder = Path(arguments[0]) if arguments else ROOT / ".venv-trainers"
    wrong = made(folder)
    if wrong is not None:
        print(f"skipped  the trainers' own parsers: {wrong[:200]}")
        return 0
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    command = [str(folder / "bin" / "python"), "-m", "pytest", "-q", "-n", "0", "-rs"]
    command += ["-p", "no:cacheprovider", "-p", "no:warnings", str(ROOT / TEST)]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": paths}).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
