"""The licences of the Rust crates that are linked into the solver, for the wheel that holds them.

MIT and BSD ask that their notices go along with binaries. A wheel has them beside our licence, in
`licenses/LICENSE-crates.txt`, and its SBOM lists the crates' versions.
"""

from __future__ import annotations

import json
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

NAME = "LICENSE-crates.txt"
NOTICES = ("LICENSE", "LICENCE", "COPYING", "NOTICE", "COPYRIGHT", "UNLICENSE")


def linked_crates(metadata: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the packages that the root package links, by name; those of builds are left out."""
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    linked, pending = set(), [metadata["resolve"]["root"]]
    while pending:
        one = pending.pop()
        kinds = {kind for target in packages[one]["targets"] for kind in target["kind"]}
        if one in linked or "proc-macro" in kinds:
            continue
        linked.add(one)
        for dependency in nodes[one]["deps"]:
            if any(kind["kind"] is None for kind in dependency["dep_kinds"]):
                pending.append(dependency["pkg"])
    outside = [packages[one] for one in linked if packages[one]["source"] is not None]
    return sorted(outside, key=lambda package: (package["name"], package["version"]))


def notices(package: dict[str, Any]) -> list[str]:
    """Returns the texts of a package's licence files."""
    folder = Path(package["manifest_path"]).parent
    files = sorted(file for file in folder.iterdir() if file.name.upper().startswith(NOTICES))
    return [file.read_text(errors="replace").strip() for file in files if file.is_file()]


def write_licences(tree: Path, target: str) -> None:
    """Writes `NAME` into `tree`, the root of an unpacked sdist, for one of Rust's targets."""
    metadata = json.loads(
        subprocess.run(
            ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", target,
             "--manifest-path", tree / "solver" / "bindings" / "Cargo.toml"],
            stdout=subprocess.PIPE, check=True,
        ).stdout
    )  # fmt: skip
    crates = linked_crates(metadata)
    owners: dict[str, list[str]] = defaultdict(list)
    for crate in crates:
        for text in notices(crate):
            owners[text].append(crate["name"])
    lines = [
        "The solver of this wheel, shardwise/_core.abi3.so, contains these Rust crates:", "",
        *(f"  {crate['name']} {crate['version']}: {crate['license']}" for crate in crates), "",
        "Their licences and notices follow, each text once.",
    ]  # fmt: skip
    for text, names in owners.items():
        lines += ["", "=" * 80, ", ".join(names), "=" * 80, "", text]
    (tree / NAME).write_text("\n".join(lines) + "\n")
