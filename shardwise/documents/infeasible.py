"""`shardwise.infeasible/1`: a service's answer when nothing fits."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType


class Infeasible(msgspec.Struct, frozen=True, tag_field="schema", tag="shardwise.infeasible/1"):
    """Why there is no strategy; `gpus` is null for a question that names no number of GPUs.

    `bundle` is there for devices of several kinds: how many of which group.
    """

    graph: str
    graph_name: str
    hardware: str
    gpus: int | None
    feasible: bool
    reason: str
    bundle: str | UnsetType = UNSET
