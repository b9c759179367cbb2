"""Debian's archive as this machine's apt has it: addresses are read at run time, never written."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from harness.containers.engine import Missing, run

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


@dataclass(frozen=True)
class Archive:
    """Addresses of Debian's archive and, where apt has it, of its security updates."""

    main: str
    security: str | None

    def sources(self, suite: str) -> str:
        """Returns a suite's sources in deb822's form."""
        suites = [(self.main, f"{suite} {suite}-updates")]
        if self.security:
            suites.append((self.security, f"{suite}-security"))
        return "\n".join(
            f"Types: deb\nURIs: {address}\nSuites: {names}\nComponents: main\n"
            f"Signed-By: {KEYRING}\n"
            for address, names in suites
        )


def archive() -> Archive:
    """Returns where this machine's apt takes Debian's packages from.

    Raises Missing if it has no such source: not Debian, or `apt-get update` has never run.
    """
    wanted = "$(LABEL)|$(REPO_URI)"
    try:
        listed = run("apt-get", "indextargets", "--format", wanted, "Created-By: Packages")
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        raise Missing("apt's sources of Debian") from error
    addresses: dict[str, str] = {}
    for line in listed.splitlines():
        label, _, address = line.partition("|")
        addresses.setdefault(label, address)
    if "Debian" not in addresses:
        raise Missing("apt's sources of Debian (has `apt-get update` run?)")
    return Archive(addresses["Debian"], addresses.get("Debian-Security"))


def unpack(suite: str, packages: list[str], folder: Path) -> None:
    """Unpacks a suite's packages, without what they depend on, into a folder.

    apt's lists and configuration are folders of their own; the machine's stay as they are.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as kept:
        root = Path(kept)
        for name in ("lists/partial", "cache/archives/partial", "parts", "debs"):
            (root / name).mkdir(parents=True)
        (root / "parts" / "suite.sources").write_text(archive().sources(suite))
        options = [
            f"Dir::Etc::sourceparts={root}/parts",
            "Dir::Etc::sourcelist=/dev/null",
            f"Dir::State::lists={root}/lists",
            f"Dir::Cache={root}/cache",
            "APT::Sandbox::User=root",
        ]
        apt = ["apt-get", "-qq", *(part for option in options for part in ("-o", option))]
        run(*apt, "update")
        run(*apt, "download", *packages, cwd=root / "debs")
        for package in (root / "debs").glob("*.deb"):
            run("dpkg-deb", "--extract", str(package), str(folder))
