"""A plan that was made for a trainer, as its configuration."""

from __future__ import annotations

from typing import Any

import msgspec

from shardwise.documents import Plan
from shardwise.errors import BadInput
from shardwise.schedulers.exported import exported


def trainer_export(plan: Plan, trainer: str) -> dict[str, Any]:
    """Returns a plan's export; `refused` is why the trainer's file cannot say it, else None."""
    try:
        document = exported(plan, None, trainer, None)
    except BadInput as error:
        return {"format": trainer, "refused": str(error)}
    return {**msgspec.to_builtins(document), "refused": None}
