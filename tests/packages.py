"""Programs that tests need and that come in system packages, not in wheels.

`python tests/packages.py --install` installs the missing ones if it may (as root, with apt). It
never fails: tests that need a missing package are skipped, and the run names the command that
installs it. This module imports the standard library alone, since it runs before anything is
installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

PROGRAMS: dict[str, tuple[str, ...]] = {
    "chromium": ("chromium",),
    "prometheus": ("prometheus", "promtool"),
    "iproute2": ("ip",),
    "curl": ("curl",),
    "nftables": ("nft",),
    "wireguard-tools": ("wg",),
    "wireguard-go": ("wireguard-go",),
    "openssl": ("openssl",),
    "rsync": ("rsync",),
    "debootstrap": ("debootstrap",),
}
"""Debian's packages, each with the programs that tests call."""


def missing() -> list[str]:
    """Returns the packages of which a program is not on PATH, in the table's order."""
    return [
        package for package, programs in PROGRAMS.items() if not all(map(shutil.which, programs))
    ]


def command(packages: list[str]) -> str:
    """Returns the command that installs packages on Debian and Ubuntu."""
    return "sudo apt-get install " + " ".join(packages)


def install(packages: list[str]) -> None:
    """Installs packages with apt as root; elsewhere prints the command that would."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        print(f"Tests that need {', '.join(packages)} will be skipped: {command(packages)}")
        return
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for arguments in (["update", "-qq"], ["install", "-y", "-qq", *packages]):
        done = subprocess.run(
            ["apt-get", *arguments], env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            print(f"apt-get {arguments[0]} failed:\n{done.stderr[-1000:]}", file=sys.stderr)


if __name__ == "__main__":
    lacking = missing()
    if lacking and "--install" in sys.argv[1:]:
        install(lacking)
    elif lacking:
        print(command(lacking))
