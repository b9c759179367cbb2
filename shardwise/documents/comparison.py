"""`shardwise.compare/1`: other systems' strategies and our frontier on one cost model."""

from __future__ import annotations

import msgspec

from shardwise.documents.common import Details, Heading


class CostBreakdown(msgspec.Struct, frozen=True):
    """The parts of a strategy's memory and time."""

    parameter_bytes: float
    activation_bytes: float
    edge_bytes: float
    fixed_bytes: float
    compute_s: float
    synchronisation_s: float
    rescheduling_s: float


class ComparedPoint(msgspec.Struct, frozen=True):
    """One strategy; `our_time_s` is our fastest in no more memory."""

    label: str | None
    memory_bytes: int
    time_s: float
    compute_s: float
    communication_s: float
    feasible: bool
    our_time_s: float | None
    breakdown: CostBreakdown


class ComparedMethod(msgspec.Struct, frozen=True):
    """The strategies of a system in one space; `best` is the position of its fastest that fits."""

    method: str
    title: str
    space: str
    found_by: str
    frontier: bool
    epsilon: float | None
    points: list[ComparedPoint]
    best: int | None
    reason: str | None
    notes: list[str]
    details: Details
    seconds: float


class Comparison(Heading, frozen=True, tag_field="schema", tag="shardwise.compare/1"):
    """Every system on one cost model."""

    micro_batches: int
    methods: list[ComparedMethod]
    data_parallel_over_mini_time: dict[str, float | None]
