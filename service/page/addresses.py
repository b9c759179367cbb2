"""Where the page shows a thing that documents name by its id."""

from __future__ import annotations

from functools import cache
from urllib.parse import quote

from shardwise.hardware import list_builtin, load_hardware


def profile_address(hardware_id: str) -> str:
    """Returns the page of a profile: built-in ones are found by their names alone."""
    return f"/hardware/{quote(_builtin().get(hardware_id, hardware_id), safe='')}"


@cache
def _builtin() -> dict[str, str]:
    return {load_hardware(name).id: name for name in list_builtin()}
