"""Items of lists: what lists show of a row is bounded, whatever was uploaded.

A page with the most items that a caller may request (`pages.MAX_LIMIT`) stays within a few MB;
whole documents are fetched one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from shardwise.hardware import Hardware, hardware_from_document

MAX_NAME = 200
MAX_TEXT = 1000
MAX_OPTIONS_BYTES = 2048
MAX_INVENTORY_BYTES = 4096
MAX_DEVICES = 64
MAX_ENTRY_POINTS = 32
MAX_PREDICTED = 32
MAX_ITEM_JOBS = 32
HARDWARE_SCHEMA = "shardwise.hardware-summary/1"


def clipped(text: object, most: int = MAX_NAME) -> str:
    """Returns the text, cut with an ellipsis if it is longer than `most` characters."""
    whole = str(text)
    return whole if len(whole) <= most else whole[: most - 1] + "…"


def _with_clipped_texts(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: clipped(value) if isinstance(value, str) else value for name, value in values.items()
    }


def hardware_summary(hardware: Hardware, *, builtin: bool) -> dict[str, Any]:
    """Returns a profile as lists show it, without its time of creation."""
    device = hardware.devices[0]
    summary = {
        "schema": HARDWARE_SCHEMA,
        "id": hardware.id,
        "name": clipped(hardware.name),
        "builtin": builtin,
        "provenance": clipped(hardware.provenance, MAX_TEXT),
        "device": clipped(device.kind),
        "gpus_per_node": device.count,
        "memory_bytes": device.memory_bytes,
        "max_nodes": hardware.max_nodes,
        "measured": bool(hardware.collectives),
    }
    return {**summary, **_of_groups(hardware)} if hardware.groups else summary


def _of_groups(hardware: Hardware) -> dict[str, Any]:
    """Returns what differs in the summary of a profile with groups of devices: all kinds, the
    largest node, the smallest memory, and the groups."""
    groups: list[dict[str, Any]] = [
        {
            "name": clipped(group.name),
            "kind": clipped(group.kind),
            "nodes": group.nodes,
            "per_node": group.per_node,
            "memory_bytes": hardware.kind(group.kind).memory_bytes,
        }
        for group in hardware.groups
    ]
    return {
        "device": clipped(", ".join(dict.fromkeys(group.kind for group in hardware.groups))),
        "gpus_per_node": max(group.per_node for group in hardware.groups),
        "memory_bytes": min(group["memory_bytes"] for group in groups),
        "groups": groups,
    }


def summary_of_document(document: dict[str, Any]) -> dict[str, Any]:
    """Returns the `hardware_summary` of a stored profile."""
    return hardware_summary(hardware_from_document(document), builtin=False)


def job_item(document: dict[str, Any]) -> dict[str, Any]:
    """Returns a job's document as lists show it: without options and texts beyond their bounds."""
    asked = _with_clipped_texts(document["question"])
    if size_of(asked.get("options")) > MAX_OPTIONS_BYTES:
        asked["options"] = {}
    error = document["error"]
    if error is not None:
        kept = ("type", "title", "detail", "field", "expected")
        error = {name: clipped(error[name], MAX_TEXT) for name in kept if name in error}
    return {**document, "question": asked, "error": error}


def launch_item(document: dict[str, Any]) -> dict[str, Any]:
    """Returns a launch as lists show it: how many agents, no arguments, no environment."""
    request = _with_clipped_texts(document["request"])
    for name in ("arguments", "environment"):
        request.pop(name, None)
    agents = request.get("agents")
    request["agents"] = len(agents) if isinstance(agents, list) else agents
    summary = _with_clipped_texts(document["summary"])
    if "predicted" in summary:
        summary["predicted"] = few_numbers(summary["predicted"])
    return {**document, "request": request, "summary": summary}


def few_numbers(predicted: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the first numbers of a plan's predictions, by name."""
    numbers = [
        (clipped(name), value)
        for name, value in predicted.items()
        if isinstance(value, int | float) and abs(value) < 1e300
    ]
    return dict(numbers[:MAX_PREDICTED])


def agent_item(document: dict[str, Any]) -> dict[str, Any]:
    """Returns an agent's document as lists show it: a large inventory in short, the first of its
    jobs."""
    inventory = document["inventory"]
    if size_of(inventory) > MAX_INVENTORY_BYTES:
        inventory = _inventory_in_short(inventory)
    return {**document, "inventory": inventory, "jobs": document["jobs"][:MAX_ITEM_JOBS]}


def _inventory_in_short(inventory: Mapping[str, Any]) -> dict[str, Any]:
    plain = ("schema", "host", "cpus", "memory_bytes", "cpu_only", "slots", "ports")
    return {
        **_with_clipped_texts(
            {
                name: inventory[name]
                for name in plain
                if isinstance(inventory.get(name), str | int | float)
            }
        ),
        "devices": [
            {"index": i, "kind": clipped(device["kind"], 60)}
            for i, device in enumerate(inventory.get("devices", ())[:MAX_DEVICES])
        ],
        "entry_points": [
            {"name": clipped(entry["name"], 128)}
            for entry in inventory.get("entry_points", ())[:MAX_ENTRY_POINTS]
        ],
        "shortened": True,
    }


def size_of(value: Any) -> int:
    """Returns the number of bytes of a value as JSON."""
    return len(msgspec.json.encode(value))
