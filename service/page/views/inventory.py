"""An agent's inventory prepared for its templates.

The service checks the members that it reads; the others (`kernel`, `pcie`, …) come as the agent
sends them, so each is checked before it is shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

MOST_TEXT = 200
_FACTS = (("host", "host"), ("kernel", "kernel"), ("python", "Python"), ("torch", "torch"),
          ("shardwise", "Shardwise"), ("ports", "ports for ranks to meet"))  # fmt: skip


def devices_in_short(inventory: Mapping[str, Any]) -> str:
    """Returns the devices as `8 × H100`; for a host without any, its processors."""
    kinds = Counter(device["kind"] for device in inventory.get("devices", []))
    if kinds:
        return ", ".join(f"{count} × {kind}" for kind, count in kinds.items())
    cpus = inventory.get("cpus", 0)
    return f"none; {cpus} CPU{'s' if cpus != 1 else ''}"


def inventory_context(inventory: Mapping[str, Any]) -> dict[str, Any]:
    """Returns facts of the host, its devices and its allow-list."""
    facts = [(label, _text(inventory.get(name))) for name, label in _FACTS]
    addresses = inventory.get("addresses", [])
    return {
        "facts": [(label, text) for label, text in facts if text],
        "addresses": addresses,
        "cpus": inventory.get("cpus"),
        "memory_bytes": inventory.get("memory_bytes"),
        "host_devices": [_device(device) for device in inventory.get("devices", [])],
        "entry_points": [
            {"name": entry["name"], "description": entry.get("description", "")}
            for entry in inventory.get("entry_points", [])
        ],
    }


def _device(device: Mapping[str, Any]) -> dict[str, Any]:
    pcie = device.get("pcie")
    link = ""
    if isinstance(pcie, Mapping):
        parts = (("generation ", "generation"), ("×", "width"))
        link = " ".join(mark + _text(pcie.get(name)) for mark, name in parts if pcie.get(name))
    return {
        "index": device["index"],
        "kind": device["kind"],
        "memory_bytes": device["memory_bytes"],
        "used_by_others": device.get("used_by_others", False),
        "nvlink": _ranges(device.get("nvlink", [])),
        "pcie": link,
        "numa": _text(device.get("numa")),
        "uuid": _text(device.get("uuid")),
    }


def _text(value: Any) -> str:
    """Returns a string or a number as text, anything else as an empty string."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return ""
    return str(value)[:MOST_TEXT]


def _ranges(numbers: list[int]) -> str:
    """Returns numbers as `1–3, 7`."""
    ranges: list[list[int]] = []
    for value in sorted(set(numbers)):
        if ranges and value == ranges[-1][1] + 1:
            ranges[-1][1] = value
        else:
            ranges.append([value, value])
    return ", ".join(f"{low}" if low == high else f"{low}–{high}" for low, high in ranges)
