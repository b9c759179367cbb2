"""What a wheel has to be before anybody installs it.

Its tags and what auditwheel finds in its library agree; it holds our packages and nothing of the
tree or the machine on which it was built; the licences are in it.
"""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from email.message import Message
from email.parser import BytesParser
from pathlib import Path

from tools.crate_licences import NAME as CRATE_LICENCES

GLIBC = "2_17"
PYTHON = "cp311-abi3"
MOST_BYTES = 6 * 1024**2
LIBRARY = "shardwise/_core.abi3.so"
PACKAGES = {"shardwise", "service", "worker", "agent", "migrations"}
SUFFIXES = {
    ".css", ".csv", ".gz", ".html", ".js", ".json", ".mako", ".md", ".py", ".pyi", ".so", ".svg",
    ".template", ".toml", ".txt", ".typed",
}  # fmt: skip
ELF_MACHINES = {"x86_64": 62, "aarch64": 183}


def check_wheel(wheel: Path, machine: str, foreign: Sequence[Path] = ()) -> list[str]:
    """Returns what is wrong with a wheel for `machine`.

    No file that is built may name a path below the `foreign` folders: the library and the SBOM.
    """
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
        (info,) = {name.split("/")[0] for name in names if ".dist-info/" in name}
        problems = [
            *_metadata_problems(archive, info, machine),
            *_name_problems(names, info),
            *_library_problems(archive.read(LIBRARY) if LIBRARY in names else b"", machine),
        ]
        for name in names:
            if name == LIBRARY or "/sboms/" in name:
                problems += _foreign_paths(name, archive.read(name), foreign)
    if wheel.stat().st_size > MOST_BYTES:
        problems.append(f"{wheel.stat().st_size:,} bytes; expected at most {MOST_BYTES:,}")
    return [*problems, *_auditwheel_problems(wheel, machine)]


def _message(content: bytes) -> Message:
    return BytesParser().parsebytes(content)


def _metadata_problems(archive: zipfile.ZipFile, info: str, machine: str) -> Iterator[str]:
    tags = _message(archive.read(f"{info}/WHEEL")).get_all("Tag") or []
    expected = f"{PYTHON}-manylinux_{GLIBC}_{machine}"
    if expected not in tags:
        yield f"tags {', '.join(tags)}; expected {expected}"
    metadata = _message(archive.read(f"{info}/METADATA"))
    if metadata["License-Expression"] != "Apache-2.0":
        yield f"License-Expression {metadata['License-Expression']}; expected Apache-2.0"
    for name in ("LICENSE", CRATE_LICENCES):
        if f"{info}/licenses/{name}" not in archive.namelist():
            yield f"{name} is missing"


def _name_problems(names: Sequence[str], info: str) -> Iterator[str]:
    for name in names:
        top = name.split("/")[0]
        if top == info:
            continue
        if top not in PACKAGES:
            yield f"{name} is in none of {', '.join(sorted(PACKAGES))}"
        elif Path(name).suffix not in SUFFIXES:
            yield f"{name} is of no kind that belongs in a wheel"
    libraries = [name for name in names if name.endswith(".so")]
    if libraries != [LIBRARY]:
        yield f"libraries {libraries}; expected {LIBRARY} alone"


def _library_problems(library: bytes, machine: str) -> Iterator[str]:
    if library[:4] != b"\x7fELF":
        yield f"{LIBRARY} is not an ELF file"
    elif int.from_bytes(library[18:20], "little") != ELF_MACHINES[machine]:
        yield f"{LIBRARY} is not for {machine}"


def _foreign_paths(name: str, content: bytes, foreign: Sequence[Path]) -> Iterator[str]:
    for folder in foreign:
        if re.search(rb"(?<![\w.-])" + re.escape(f"{folder}/".encode()), content):
            yield f"{name} names {folder}"


def _auditwheel_problems(wheel: Path, machine: str) -> Iterator[str]:
    shown = subprocess.run(
        [sys.executable, "-m", "auditwheel", "show", wheel],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    flat = " ".join(shown.stdout.split())
    if f'consistent with the following platform tag: "manylinux_{GLIBC}_{machine}"' not in flat:
        yield f"auditwheel: {flat or shown.stderr.strip()}"
