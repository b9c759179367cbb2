"""Finding a profile: a built-in name, a file, or `NAME*NODES`."""

from __future__ import annotations

import os
from functools import cache
from importlib import resources

import msgspec

from shardwise import validation
from shardwise.errors import BadInput
from shardwise.files import read_bounded
from shardwise.hardware.document import hardware_from_document
from shardwise.hardware.hardware import SCHEMA, Hardware


def list_builtin() -> list[str]:
    """Returns the names of the built-in profiles."""
    folder = resources.files("shardwise") / "data" / "hardware"
    return sorted(
        f.name.removesuffix(".json") for f in folder.iterdir() if f.name.endswith(".json")
    )


def load_hardware(spec: str) -> Hardware:
    """Returns the profile of `--hardware`: a built-in name, a profile file, either with `*NODES`.

    Raises `BadInput` for an unknown name, a file that is refused, a node count that is out of range
    or that of a profile with groups.
    """
    name, star, count = spec.rpartition("*")
    if not star:
        return _one(spec)
    hardware = _one(name)
    hardware.require_no_groups("hardware")
    if not count.isdigit() or not 1 <= int(count) <= hardware.most_nodes:
        raise BadInput(
            f"{count!r} nodes",
            field="hardware",
            expected=f"NAME*NODES with 1 to {hardware.most_nodes} nodes",
        )
    return hardware.with_nodes(int(count))


@cache
def _builtin(name: str) -> Hardware:
    text = (resources.files("shardwise") / "data" / "hardware" / f"{name}.json").read_bytes()
    return hardware_from_document(msgspec.json.decode(text), f"built-in {name}")


def _one(spec: str) -> Hardware:
    if spec in list_builtin():
        return _builtin(spec)
    if not (os.sep in spec or spec.endswith(".json")):
        raise BadInput(
            f"unknown hardware {spec!r}",
            field="hardware",
            expected=f"a profile file or one of {', '.join(list_builtin())}",
        )
    text = read_bounded(spec, f"a {SCHEMA} file")
    return hardware_from_document(validation.decode_any(text, file=spec), spec)
