"""An agent's report about itself, every few seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class HeldAssignment:
    """An assignment that an agent says it has."""

    assignment: str
    token: str


@dataclass(frozen=True)
class Heartbeat:
    """A heartbeat; `inventory` only when it has changed."""

    boot_id: str
    inventory_hash: str
    jobs: list[HeldAssignment]
    draining: bool
    reason: str
    inventory: dict[str, Any] | None
