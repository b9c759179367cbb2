"""`shardwise.frontier/1`: every strategy that no other beats in both memory and time."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from shardwise.documents.common import (
    Certificate,
    ComputeShares,
    Heading,
    PlacePeak,
    SearchReport,
)
from shardwise.documents.pipeline_point import PipelinePoint

SUMS = ("memory_bytes", "time_s")
REPLAYED = ("replayed_peak_bytes", "replayed_time_s")


def axes_of(overlap: bool) -> tuple[str, str]:
    """Returns the members of a point, memory and time, in which a frontier ascends and descends."""
    return REPLAYED if overlap else SUMS


class PointMemory(msgspec.Struct, frozen=True):
    """What the memory of a point consists of, in bytes."""

    parameter_bytes: int
    activation_bytes: int
    rescheduled_bytes: int
    fixed_bytes: int


class PointTime(msgspec.Struct, frozen=True):
    """What the time of a point consists of, in seconds."""

    compute_s: float
    synchronisation_s: float
    rescheduling_s: float


class Split(msgspec.Struct, frozen=True):
    """A configuration in words, and how many groups have it."""

    split: str
    groups: int


class FrontierPoint(msgspec.Struct, frozen=True):
    """One strategy: sums of the search, and the step as it was replayed.

    `feasible` says that the replayed peak is within the memory limit. `label` and what follows it
    are as in a plan's `predicted`, except `gap`: how much faster a strategy of no more memory could
    be at most, relative, null without a proof. `differs` is there where an earlier point has the
    same label: what is otherwise than in the last of these, and in how many groups.
    """

    memory_bytes: int
    time_s: float
    plan_id: str
    micro_batches: int
    compute_s: float
    compute_shares: ComputeShares | None
    communication_s: float
    replayed_time_s: float
    replayed_peak_bytes: int
    feasible: bool
    memory: PointMemory
    time: PointTime
    splits: list[Split]
    other_splits: int
    label: str | UnsetType = UNSET
    model_flops_utilisation: float | UnsetType = UNSET
    causal_flops_utilisation: float | UnsetType = UNSET
    tokens_per_s: float | UnsetType | None = UNSET
    bound_by: str | UnsetType = UNSET
    gap: float | UnsetType | None = UNSET
    host_s: float | UnsetType = UNSET
    places: list[PlacePeak] | UnsetType = UNSET
    exposed_communication_s: float | UnsetType = UNSET
    differs: str | UnsetType = UNSET


WITHIN = 0.3
"""Relative: how much longer than the fastest a named strategy may take."""
MOST_NAMED = 8
"""Strategies that a frontier names."""


class NamedStrategy(msgspec.Struct, frozen=True):
    """A strategy that fits, to decide between: the fastest, or one of the whole model with a name.

    `slower` is the excess of its step over the fastest's, relative, and `more_bytes` that of its
    peak over the least of those named: what it gives up.
    """

    label: str
    micro_batches: int
    replayed_time_s: float
    replayed_peak_bytes: int
    slower: float
    more_bytes: int


def exposed_s(point: FrontierPoint) -> float:
    """Returns how long the devices of a replayed step wait for communication, in seconds.

    Of a document of an earlier version it is what they wait for anything, their host too.
    """
    exposed = point.exposed_communication_s
    return max(point.replayed_time_s - point.compute_s, 0.0) if exposed is UNSET else exposed


class Frontier(Heading, frozen=True, tag_field="schema", tag="shardwise.frontier/1"):
    """The frontier of a graph on a number of GPUs.

    Points ascend in memory and descend in time: with `overlap` the replayed peak and the replayed
    time, else the sums. `turning_point` is the knee on the same axes. `bundle` is there for devices
    of several kinds: how many of which group.

    `named` are the strategies to decide between, the fastest first: up to `MOST_NAMED` that fit and
    take at most `WITHIN` longer; unset for sums and for devices of several kinds.

    `pipelines` are there where numbers of stages were asked for: those that neither another one nor
    a point beats in peak and step, ascending in peak, each with a `gap` of its own. All are within
    the memory limit. `points`, `turning_point` and `certificate` are about strategies without a
    pipeline.
    """

    points: list[FrontierPoint]
    turning_point: int | None
    certificate: Certificate
    search: SearchReport
    bundle: str | UnsetType = UNSET
    pipelines: list[PipelinePoint] | UnsetType = UNSET
    named: list[NamedStrategy] | UnsetType = UNSET

    @property
    def pipelines_gap(self) -> float | None:
        """The largest gap of the pipelines, None where one has no proof or there are none."""
        gaps = [pipeline.gap for pipeline in self.pipelines or ()]
        proven = [gap for gap in gaps if isinstance(gap, float)]
        return max(proven) if proven and len(proven) == len(gaps) else None
