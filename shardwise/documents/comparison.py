"""`shardwise.compare/1`: other systems' strategies and our frontier on one cost model."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from shardwise.documents.common import Certificate, Details, Heading
from shardwise.documents.plan import PlannedPlace

RECIPE = "recipe-"
"""With what the methods of published recipes begin."""


class CostBreakdown(msgspec.Struct, frozen=True):
    """The parts of a strategy's memory and time."""

    parameter_bytes: float
    activation_bytes: float
    edge_bytes: float
    fixed_bytes: float
    compute_s: float
    synchronisation_s: float
    rescheduling_s: float


class ComparedPipeline(msgspec.Struct, frozen=True):
    """A pipeline's number of stages, its schedule, the share of the step in which a device waits,
    in the mean over stages, and the peak of a device of each stage.

    `stages_per_rank` is how many stages each device has, where that is more than one; `stages` then
    counts groups of devices, and the mean and the peaks are over those.
    """

    stages: int
    schedule: str
    idle: float
    peak_bytes: list[int]
    stages_per_rank: int | UnsetType = UNSET


class ComparedPoint(msgspec.Struct, frozen=True):
    """One strategy: sums, and what its step takes when it is replayed.

    `feasible` says that the replayed peak is within the memory limit, by sums that the sum is;
    `our_time_s` is the replayed time of our answer (null where nothing fits), by sums our fastest
    in no more memory. `slower_by` is how much longer the step takes than ours, relative; by
    sums it is not there.

    On devices of several kinds the peak is that of the place with the least memory left, as a share
    of the smallest memory, and `places` has each place's own, with its times.

    A `pipeline` has its slowest stage's sums, with the micro-batches that this keeps, and no
    `exposed_communication_s`.
    """

    label: str | None
    memory_bytes: int
    time_s: float
    compute_s: float
    communication_s: float
    feasible: bool
    our_time_s: float | None
    breakdown: CostBreakdown
    micro_batches: int | UnsetType = UNSET
    replayed_peak_bytes: int | UnsetType = UNSET
    replayed_time_s: float | UnsetType = UNSET
    exposed_communication_s: float | UnsetType = UNSET
    slower_by: float | UnsetType | None = UNSET
    places: list[PlannedPlace] | UnsetType = UNSET
    pipeline: ComparedPipeline | UnsetType = UNSET


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
    """Every system on one cost model.

    By replayed steps (`overlap`) there are `certificate`, which is about our answer, and
    `ranking`: the methods that fit, the fastest first. `bundle` is there for devices of several
    kinds: how many of which group.
    """

    micro_batches: int
    methods: list[ComparedMethod]
    data_parallel_over_mini_time: dict[str, float | None]
    certificate: Certificate | UnsetType = UNSET
    ranking: list[str] | UnsetType = UNSET
    bundle: str | UnsetType = UNSET


def best_of(method: ComparedMethod) -> int:
    """Returns the point that stands for a method that has any, in a comparison by replayed steps.

    It is the fastest that fits, or where none does the one of the least peak.
    """
    if method.best is not None:
        return method.best
    peaks = [point.replayed_peak_bytes or 0 for point in method.points]
    return peaks.index(min(peaks))


def ranked(document: Comparison) -> list[tuple[ComparedMethod, ComparedPoint]]:
    """Returns the methods of a comparison by replayed steps, each with the point that stands for
    it: those that fit first, the fastest first, of equals ours."""

    def rank(one: tuple[ComparedMethod, ComparedPoint]) -> tuple[bool, float, bool]:
        method, point = one
        return not point.feasible, point.replayed_time_s or 0.0, method.method != "shardwise"

    return sorted(((m, m.points[best_of(m)]) for m in document.methods if m.points), key=rank)


def shown(method: ComparedMethod) -> list[tuple[str, ComparedPoint]]:
    """Returns the points of a method that stand for it in a comparison by sums, with their names:
    of a frontier its ends and what fits, of others all."""
    points = method.points
    labels = {i: point.label or "" for i, point in enumerate(points)}
    if method.frontier and points:
        ends = {0: "least memory", len(points) - 1: "least time"}
        if method.best is not None:
            ends.setdefault(method.best, "fastest that fits")
        labels = {i: ", ".join(filter(None, (labels[i], ends[i]))) for i in sorted(ends)}
    return [(label, points[i]) for i, label in labels.items()]


def strategy_of(point: ComparedPoint) -> str:
    """Returns a point's label with its number of micro-batches; empty where nothing is to say."""
    label, count = point.label or "", point.micro_batches or 1
    batches = f"{count} micro-batches" if count > 1 and "micro-batches" not in label else ""
    return ", ".join(filter(None, (label, batches)))
