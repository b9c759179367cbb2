"""Images of Debian with some of its packages, made by debootstrap and kept by the engine."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

SUITE = "bookworm"
INSTALL_S = 1500.0

PYTHON_NEEDS = ("libffi8", "libgomp1", "libsqlite3-0", "libssl3", "libstdc++6")
"""Libraries of a mounted Python and of torch."""


def image(name: str, *packages: str) -> str:
    """Returns the tag of an image with these packages; the first call makes it (a minute).

    The tag names the packages, so another list is another image. Skips the test where there is no
    container engine, or the image is not there and cannot be made: that takes root and debootstrap.
    """
    require_engine()
    wanted = sorted({*packages, *PYTHON_NEEDS})
    digest = hashlib.sha256(" ".join([SUITE, *wanted]).encode()).hexdigest()[:12]
    tag = f"{name}:{digest}"
    if _docker("image", "inspect", tag).returncode:
        if os.geteuid() != 0:
            pytest.skip(f"needs root to make the image {tag}")
        if shutil.which("debootstrap") is None:
            pytest.skip("needs the package debootstrap: sudo apt-get install debootstrap")
        _make(tag, wanted)
    return tag


def require_engine() -> None:
    """Skips the test unless a container engine answers."""
    if shutil.which("docker") is None or _docker("info").returncode:
        pytest.skip("needs a container engine: docker does not answer")


def _make(tag: str, packages: list[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="shardwise-debian-") as folder:
        root = Path(folder) / "root"
        # Without a mirror's name debootstrap takes its own, and writes it into sources.list.
        _run("debootstrap", "--variant=minbase", "--include=ca-certificates", SUITE, str(root))
        # No daemon may start while its package is installed.
        policy = root / "usr/sbin/policy-rc.d"
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
        shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
        for command in (
            ["apt-get", "update", "-qq"],
            ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages],
            ["apt-get", "clean"],
        ):
            _run("chroot", str(root), "env", "DEBIAN_FRONTEND=noninteractive", *command)
        policy.unlink()
        packed = subprocess.Popen(
            ["tar", "--numeric-owner", "-C", str(root), "-c", "."], stdout=subprocess.PIPE
        )
        subprocess.run(
            ["docker", "import", "-", tag], stdin=packed.stdout, capture_output=True, check=True
        )
        assert packed.wait() == 0, "tar failed"


def _docker(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False)


def _run(*command: str) -> None:
    # What debootstrap mounts below the folder goes with its namespace, however it ends.
    command = ("unshare", "--mount", *command)
    done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    assert done.returncode == 0, f"{' '.join(command[2:6])}: {(done.stdout + done.stderr)[-2000:]}"
