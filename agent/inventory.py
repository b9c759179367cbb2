"""What this host is: processors, memory, addresses, devices, what it allows to be run."""

from __future__ import annotations

import hashlib
import importlib.metadata
import ipaddress
import json
import os
import platform
import socket
from typing import Any

import psutil

from agent.allow import BUILT_IN
from agent.config import Config
from agent.devices import devices

SCHEMA = "shardwise.inventory/1"


def inventory(config: Config, own_pids: set[int]) -> dict[str, Any]:
    """Returns the inventory document; `own_pids` are the agent's launches."""
    gpus = devices(own_pids)
    cpus = len(os.sched_getaffinity(0))
    entry_points = {**config.entry_points, **BUILT_IN}
    return {
        "schema": SCHEMA,
        "host": socket.gethostname(),
        "cpus": cpus,
        "memory_bytes": psutil.virtual_memory().total,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": _version("torch"),
        "shardwise": _version("shardwise"),
        "addresses": list(config.addresses) or own_addresses(),
        "ports": f"{config.ports[0]}-{config.ports[1]}",
        "devices": gpus,
        "cpu_only": not gpus,
        "kind": config.kind,
        "entry_points": [
            {"name": entry.name, "description": entry.description}
            for _, entry in sorted(entry_points.items())
        ],
        "slots": config.slots or len(gpus) or cpus,
    }


def hash_of(document: dict[str, Any]) -> str:
    """Returns the inventory's content hash, by which the service knows whether it has this one."""
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(canonical.encode()).hexdigest()}"


def own_addresses() -> list[str]:
    """Returns addresses at which others may reach this host; loopback only if there is no other."""
    addresses = []
    for interface in psutil.net_if_addrs().values():
        for entry in interface:
            if entry.family in (socket.AF_INET, socket.AF_INET6):
                address = ipaddress.ip_address(entry.address.partition("%")[0])
                if not address.is_loopback and not address.is_link_local:
                    addresses.append(str(address))
    return sorted(addresses, key=lambda text: (":" in text, text)) or ["127.0.0.1"]


def interface_of(address: str) -> str | None:
    """Returns the network interface that has `address`."""
    wanted = ipaddress.ip_address(address)
    for name, entries in psutil.net_if_addrs().items():
        for entry in entries:
            if entry.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            own = ipaddress.ip_address(entry.address.partition("%")[0])
            # All of 127.0.0.0/8 is loopback's, though it lists one address only.
            if own == wanted or (own.is_loopback and wanted.is_loopback):
                return str(name)
    return None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
