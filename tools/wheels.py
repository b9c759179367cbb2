"""Builds what `pip install` takes: abi3 wheels of Linux on x86-64 and arm64, and an sdist.

`make wheels` runs it. The wheels are built from the sdist, so an editable install's files cannot
get into them. zig links them against the symbols of glibc 2.17 (manylinux2014) on either machine;
no container is needed. Every wheel is checked before it is moved to `--out`: see `wheel_check`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.crate_licences import write_licences
from tools.wheel_check import GLIBC, check_wheel

ROOT = Path(__file__).parents[1]
MACHINES = ("x86_64", "aarch64")
CARGO_HOME = Path(os.environ.get("CARGO_HOME", Path.home() / ".cargo"))
MATURIN = (sys.executable, "-m", "maturin")


def run(*command: str | Path, cwd: Path, environment: Mapping[str, str] | None = None) -> None:
    """Runs a command whose output goes to ours. Exits with its status if it fails."""
    done = subprocess.run(command, cwd=cwd, env=environment, check=False)
    if done.returncode:
        sys.exit(f"failed with status {done.returncode}: {' '.join(map(str, command))}")


def need_target(target: str) -> None:
    """Installs Rust's standard library of a target with rustup if it is missing."""
    found = subprocess.run(
        ["rustc", "--print", "target-libdir", "--target", target],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    if Path(found.stdout.strip()).is_dir():
        return
    if shutil.which("rustup") is None:
        sys.exit(
            f"Rust's standard library for {target} is missing, and there is no rustup to add it"
        )
    run("rustup", "target", "add", target, cwd=ROOT)


def build_environment(tree: Path) -> dict[str, str]:
    """Returns the environment of a build in `tree` that leaves no path of this machine in it."""
    flags = [
        *os.environ.get("RUSTFLAGS", "").split(),
        f"--remap-path-prefix={CARGO_HOME / 'registry' / 'src'}=/crates",
        f"--remap-path-prefix={tree}=/shardwise",
    ]
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "CARGO_ENCODED_RUSTFLAGS": "\x1f".join(flags),
        "CARGO_TARGET_DIR": os.environ.get("CARGO_TARGET_DIR", str(ROOT / "solver" / "target")),
    }


def build_sdist(out: Path, work: Path) -> Path:
    """Writes the sdist to `out` and returns the folder in `work` to which it was unpacked."""
    run(*MATURIN, "sdist", "--out", work, cwd=ROOT)
    (sdist,) = work.glob("shardwise-*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(work, filter="data")
    shutil.copy(sdist, out)
    return work / sdist.name.removesuffix(".tar.gz")


def build_wheel(machine: str, tree: Path, out: Path) -> Path:
    """Builds and checks one machine's wheel from the unpacked sdist. Returns its path in `out`."""
    target = f"{machine}-unknown-linux-gnu"
    need_target(target)
    write_licences(tree, target)
    built = tree.parent / machine
    run(
        *MATURIN, "build", "--release", "--strip", "--locked", "--zig", "--target", target,
        "--compatibility", f"manylinux_{GLIBC}", "--out", built,
        cwd=tree, environment=build_environment(tree),
    )  # fmt: skip
    (wheel,) = built.glob("*.whl")
    problems = check_wheel(wheel, machine, foreign=(ROOT, CARGO_HOME))
    if problems:
        sys.exit(f"{wheel.name} is not fit to install:\n  " + "\n  ".join(problems))
    return Path(shutil.copy(wheel, out))


def main(arguments: Sequence[str] | None = None) -> None:
    """Builds the sdist and the wheels that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m tools.wheels", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder of the results")
    parser.add_argument(
        "--machine", choices=MACHINES, action="append", help="a machine of the wheels; default: all"
    )
    asked = parser.parse_args(arguments)
    out = asked.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="shardwise-wheels-") as name:
        work = Path(name).resolve()
        tree = build_sdist(out, work)
        for machine in asked.machine or MACHINES:
            wheel = build_wheel(machine, tree, out)
            print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, checked")


if __name__ == "__main__":
    main()
