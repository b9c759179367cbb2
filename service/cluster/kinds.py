"""Which agents have devices of a kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardwise.hardware.kinds import same_kind


def slots_of_kind(inventory: Mapping[str, Any], slots: int, kind: str) -> int:
    """Returns how many ranks a host can run on devices of a kind that no other program uses.

    A host's own label comes first; without one, the names of its devices.
    """
    label = str(inventory.get("kind") or "")
    if label:
        return slots if same_kind(kind, label) else 0
    devices = inventory.get("devices", ())
    return sum(
        same_kind(kind, str(device["kind"])) and not device.get("used_by_others", False)
        for device in devices
    )
