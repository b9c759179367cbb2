"""The built-in profiles: their names, and those that are files of their own."""

from __future__ import annotations

from functools import cache

import msgspec

from shardwise.files import DATA
from shardwise.hardware.document import hardware_from_document
from shardwise.hardware.hardware import Hardware
from shardwise.hardware.machines import machines

FOLDER = DATA / "hardware"


def list_builtin(*, rented: bool = True) -> list[str]:
    """Returns the names of the built-in profiles; without `rented` those of clouds' machines, which
    have the devices of another, are left out."""
    files = [file.stem for file in FOLDER.glob("*.json")]
    return sorted(files + [row.name for row in machines().values() if rented or not row.is_rented])


@cache
def profile_of_file(name: str) -> Hardware:
    """Returns the built-in profile with a file of its own."""
    text = (FOLDER / f"{name}.json").read_bytes()
    return hardware_from_document(msgspec.json.decode(text), f"built-in {name}")
