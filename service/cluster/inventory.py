"""An agent's report about its host: `shardwise.inventory/1`, checked and bounded."""

from __future__ import annotations

from typing import Any

import msgspec

from service.base.settings import port_range
from shardwise.errors import BadInput
from shardwise.validation import convert

SCHEMA = "shardwise.inventory/1"
MAX_BYTES = 64 * 1024
MAX_SLOTS = 4096
MAX_DEVICES = 256
MAX_ENTRY_POINTS = 256
MAX_ADDRESSES = 64
MAX_NAME = 200


class InventoryDevice(msgspec.Struct):
    """One device; other members are kept as they come."""

    index: int
    kind: str
    memory_bytes: float
    used_by_others: bool = False
    nvlink: list[int] = []


class EntryPoint(msgspec.Struct):
    """One entry of the host's allow-list."""

    name: str
    description: str = ""


class Inventory(msgspec.Struct):
    """The members that the service reads.

    `kind`: what the host says its devices are. `ports`: where ranks may meet, such as 29400-29999.
    """

    slots: int
    schema: str = SCHEMA
    host: str = ""
    cpus: int = 0
    memory_bytes: float = 0.0
    addresses: list[str] = []
    devices: list[InventoryDevice] = []
    entry_points: list[EntryPoint] = []
    cpu_only: bool = False
    kind: str = ""
    ports: str = ""


def check_inventory(document: Any, field: str = "inventory") -> dict[str, Any]:
    """Returns the document itself. Raises BadInput with the field if it is invalid or too large."""
    if not isinstance(document, dict):
        raise BadInput("not an object", field=field, expected=f"a {SCHEMA} document")
    inventory = convert(document, Inventory, field)
    size = len(msgspec.json.encode(document))
    for holds, name, problem, expected in (
        (inventory.schema == SCHEMA, "schema", f"unknown schema {inventory.schema[:60]!r}", SCHEMA),
        (size <= MAX_BYTES, "", f"{size} bytes", f"at most {MAX_BYTES}"),
        (0 <= inventory.slots <= MAX_SLOTS, "slots", f"{inventory.slots}", f"0 to {MAX_SLOTS}"),
        (len(inventory.devices) <= MAX_DEVICES, "devices", "too many", f"at most {MAX_DEVICES}"),
        (len(inventory.entry_points) <= MAX_ENTRY_POINTS, "entry_points", "too many",
         f"at most {MAX_ENTRY_POINTS}"),
        (len(inventory.addresses) <= MAX_ADDRESSES, "addresses", "too many",
         f"at most {MAX_ADDRESSES}"),
        (all(0 < len(a) <= 255 and a.isprintable() for a in inventory.addresses), "addresses",
         "not an address", "names or IP addresses"),
        (all(len(p.name) <= MAX_NAME for p in inventory.entry_points), "entry_points",
         "a long name", f"at most {MAX_NAME} characters"),
        (all(len(d.kind) <= MAX_NAME for d in inventory.devices), "devices", "a long kind",
         f"at most {MAX_NAME} characters"),
        (len(inventory.kind) <= MAX_NAME, "kind", "a long name", f"at most {MAX_NAME} characters"),
        (not inventory.ports or port_range(inventory.ports) is not None, "ports",
         f"{inventory.ports[:40]!r}", "two ports from 1024 to 65535, such as 29400-29999"),
    ):  # fmt: skip
        if not holds:
            where = f"{field}.{name}" if name else field
            raise BadInput(problem, field=where, expected=expected)
    return document
