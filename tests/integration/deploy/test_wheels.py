"""`make wheels`: a wheel that is fit to install, and that answers where there is no compiler."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tools.wheel_check import LIBRARY, check_wheel
from tools.wheels import CARGO_HOME

ROOT = Path(__file__).parents[3]
MACHINE = platform.machine()
PLAN = ("plan", "shipped:vgg16", "--hardware", "dgx-v100-16gb", "--gpus", "2")

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(sys.platform != "linux", reason="wheels of Linux"),
    pytest.mark.skipif(shutil.which("cargo") is None, reason="no Rust toolchain"),
]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for module in ("auditwheel", "maturin", "ziglang"):
        pytest.importorskip(module, reason=f"needs shardwise[dev] with {module}")
    out = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "tools.wheels", "--machine", MACHINE, "--out", out],
        cwd=ROOT, check=True,
    )  # fmt: skip
    assert [path.name.split("-")[0] for path in out.glob("*.tar.gz")] == ["shardwise"]
    (found,) = out.glob("*.whl")
    return found


def changed(wheel: Path, folder: Path, name: str, content: bytes) -> Path:
    """Returns a copy of a wheel in which one file is another, or one more."""
    copy = folder / wheel.name
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(copy, "w") as new:
        for one in old.namelist():
            if one != name:
                new.writestr(one, old.read(one))
        new.writestr(name, content)
    return copy


@pytest.mark.timeout(1200)
def test_a_clean_environment_plans_with_the_wheel_alone(wheel: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    binaries = tmp_path / "venv" / "bin"
    clean = {"PATH": f"{binaries}:/usr/bin:/bin", "HOME": str(tmp_path)}
    pip = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    subprocess.run(
        [binaries / "pip", "install", "--quiet", wheel], env={**clean, **pip}, check=True
    )
    done = subprocess.run(
        [binaries / "shardwise", *PLAN], env=clean, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("vgg16 on 2 GPUs of dgx-v100-16gb")


def test_the_wheel_is_fit(wheel: Path) -> None:
    assert wheel.name.startswith("shardwise-") and "-cp311-abi3-manylinux" in wheel.name
    assert check_wheel(wheel, MACHINE, foreign=(ROOT, CARGO_HOME)) == []


def test_what_does_not_belong_is_named(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        library = archive.read(LIBRARY)
    foreign = changed(wheel, tmp_path, "tests/test_x.py", b"")
    assert any("tests/test_x.py is in none of" in one for one in check_wheel(foreign, MACHINE))
    compiled = changed(wheel, tmp_path, "shardwise/__pycache__/errors.cpython-311.pyc", b"")
    assert any("is of no kind" in one for one in check_wheel(compiled, MACHINE))
    leaking = changed(wheel, tmp_path, LIBRARY, library + b"\0/home/me/solver/src/lib.rs")
    assert f"{LIBRARY} names /home/me" in check_wheel(leaking, MACHINE, (Path("/home/me"),))
    other = "aarch64" if MACHINE == "x86_64" else "x86_64"
    assert f"{LIBRARY} is not for {other}" in check_wheel(wheel, other)
