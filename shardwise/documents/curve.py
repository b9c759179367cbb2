"""`shardwise.curve/1`: the shortest iteration time for every GPU count, or for every bundle."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from shardwise.documents.common import ComputeShares, Expected, OperatorName, PlacePeak, Provenance
from shardwise.documents.pipeline_point import PipelinePoint
from shardwise.validation import whole_numbers


class DoesNotFit(msgspec.Struct, frozen=True):
    """Consecutive counts, `first` to `last`, on which nothing fits.

    Of those that were searched, `nearest_gpus` comes nearest: its smallest strategy needs
    `least_bytes` per GPU where `limit_bytes` may be used. All three are null where the hardware
    does not have the counts or the rules exclude them. `reason` is that of the nearest count, else
    of the first. With devices of several kinds each bundle stands alone: `bundle` is its text.
    """

    first: int
    last: int
    nearest_gpus: int | None
    least_bytes: int | None
    limit_bytes: int | None
    reason: str
    bundle: str | UnsetType = UNSET


class CurvePoint(msgspec.Struct, frozen=True):
    """The shortest time on one number of GPUs, or the reason why nothing fits.

    `best_gpus` and `best_time_s` are those of the fastest count up to this one. Where that is a
    smaller one, all other members but `gpus` are those of its point, and `idle` says how many
    devices stay idle. Where nothing
    fits, `least_bytes` is what the smallest strategy found needs per GPU. With devices of several
    kinds `bundle` says how many of which group, `places` the peaks where blocks do the same, and
    `usd_per_hour` what these devices cost where prices are known, and `alone` the group that is
    faster without the others, which stay idle; `best_gpus` and `best_time_s` are null.

    `pipeline` is the fastest pipeline that was asked for, where it is faster than every strategy
    without one or none of these fits; `best_gpus` and `best_time_s` count it. `feasible` and all
    other members are about strategies without a pipeline.

    `label` says the strategy in one line. `speedup` is how many times as fast the fastest step is
    as on the curve's `speedup_from` GPUs, and `efficiency` that over the ratio of the numbers of
    GPUs: 1 where it scales linearly. `expected` is as in a plan's prediction.
    """

    gpus: int
    nodes: int | None
    feasible: bool
    time_s: float | None
    replayed_time_s: float | None
    samples_per_s: float | None
    peak_bytes: int | None
    memory_bytes: int | None
    plan_id: str | None
    compute_shares: ComputeShares | None
    confidence: str
    reason: str | UnsetType = UNSET
    micro_batches: int | UnsetType = UNSET
    gap: float | UnsetType | None = UNSET
    best_gpus: int | None = None
    best_time_s: float | None = None
    least_bytes: int | UnsetType = UNSET
    bundle: str | UnsetType = UNSET
    places: list[PlacePeak] | UnsetType = UNSET
    usd_per_hour: float | UnsetType = UNSET
    alone: str | UnsetType = UNSET
    pipeline: PipelinePoint | UnsetType = UNSET
    label: str | UnsetType = UNSET
    idle: int | UnsetType = UNSET
    speedup: float | UnsetType = UNSET
    efficiency: float | UnsetType = UNSET
    expected: Expected | UnsetType = UNSET


class MissingPoint(msgspec.Struct, frozen=True):
    """A count or a bundle of the question that is not known, and why."""

    gpus: int
    reason: str
    bundle: str | UnsetType = UNSET


class CurveSearch(msgspec.Struct, frozen=True):
    """What all searches of a curve took."""

    seconds: float


class Curve(msgspec.Struct, frozen=True, tag_field="schema", tag="shardwise.curve/1"):
    """One point per GPU count from 1 to `max_gpus`, of `counts` or per bundle of `bundles`.

    What is said of the question is left out when the hardware has no mesh of any count.
    `does_not_fit` are the points on which nothing fits, as ranges. `missing` are the counts or
    bundles that have no point, because a limit was reached or they are still being computed.
    `speedup_from` is the smallest count that fits, of those that are known. `space` is the trainer
    whose strategies alone were searched. `not_searched` is as in a frontier.
    """

    graph: str | UnsetType = UNSET
    graph_name: str | UnsetType = UNSET
    batch_size: int | UnsetType | None = UNSET
    hardware: str | UnsetType = UNSET
    hardware_id: str | UnsetType = UNSET
    optimizer: str | UnsetType = UNSET
    precision: str | UnsetType = UNSET
    overlap: bool | UnsetType = UNSET
    device_memory_bytes: float | UnsetType = UNSET
    memory_limit_bytes: float | UnsetType = UNSET
    provenance: Provenance | UnsetType = UNSET
    undescribed_operators: list[OperatorName] | UnsetType = UNSET
    replicated_operators: list[OperatorName] | UnsetType = UNSET
    warnings: list[str] | UnsetType = UNSET
    program: str | UnsetType = UNSET
    tune: str | UnsetType = UNSET
    max_gpus: int = 0
    points: list[CurvePoint] = []
    search: CurveSearch = CurveSearch(0.0)
    does_not_fit: list[DoesNotFit] = []
    bundles: list[str] | UnsetType = UNSET
    counts: list[int] | UnsetType = UNSET
    missing: list[MissingPoint] | UnsetType = UNSET
    speedup_from: int | UnsetType = UNSET
    space: str | UnsetType = UNSET
    not_searched: list[str] | UnsetType = UNSET


def counts_from(text: str, field: str = "counts") -> list[int]:
    """Returns the counts that a text such as `8,16,32` names. Raises `BadInput`."""
    return whole_numbers(text, field, "numbers of GPUs", "numbers from 1 on, such as 8,16,32,64")


def batches_from(text: str, field: str) -> list[int]:
    """Returns the batches that a text such as `64,128` names. Raises `BadInput`."""
    return whole_numbers(text, field, "batches", "numbers from 1 on, such as 64,128,256")


def missing_texts(curve: Curve) -> list[str]:
    """Returns lines such as `16, 32: more than 600 s were needed`, one for each reason."""
    by_reason: dict[str, list[str]] = {}
    for one in curve.missing or ():
        by_reason.setdefault(one.reason, []).append(str(one.bundle or one.gpus))
    return [f"{', '.join(names)}: {reason}" for reason, names in by_reason.items()]


def fits(point: CurvePoint) -> bool:
    """Returns whether a strategy or a pipeline fits."""
    return point.feasible or point.pipeline is not UNSET


def fastest_s(point: CurvePoint, overlap: bool) -> float | None:
    """Returns the seconds of the fastest step: replayed with `overlap`, else the sum; that of the
    pipeline where there is one. None where nothing fits."""
    if point.pipeline is not UNSET:
        return point.pipeline.step_s
    return point.replayed_time_s if overlap else point.time_s


def fastest_samples_per_s(point: CurvePoint) -> float | None:
    """Returns the samples per second of the fastest step; None where they are not known."""
    return point.samples_per_s if point.pipeline is UNSET else point.pipeline.samples_per_s


def fastest_peak_bytes(point: CurvePoint) -> int | None:
    """Returns the peak of the fastest step; None where nothing fits."""
    return point.peak_bytes if point.pipeline is UNSET else point.pipeline.peak_bytes
