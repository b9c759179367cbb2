"""What `POST /v1/launches` takes: `shardwise.launch/1`."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

LAUNCH_SCHEMA = "shardwise.launch/1"


class LaunchRequest(msgspec.Struct, forbid_unknown_fields=True):
    """`POST /v1/launches`. `plan`: a document, or `plan_id` of one that this service computed.

    `agents`: how many, or their ids with that of rank 0 first. `ranks_per_agent` may be left out
    where the plan's GPUs say it. `device_kind`: part of the name of the devices that are wanted, or
    `cpu`. `hardware`: the name of the profile that a measurement is stored under; `operators`: the
    graph whose operators are measured.
    """

    kind: Literal["run", "measure"] = "run"
    schema: str = LAUNCH_SCHEMA
    plan: dict[str, Any] | None = None
    plan_id: str | None = None
    entry_point: str | None = None
    arguments: list[str] = []
    environment: dict[str, str] = {}
    agents: int | list[str] = 1
    ranks_per_agent: int | None = None
    device_kind: str | None = None
    memory_limit_bytes: float | None = None
    time_limit_s: float | None = None
    master_port: int = 0
    hardware: str | None = None
    operators: str | None = None
