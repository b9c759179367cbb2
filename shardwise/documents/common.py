"""What several documents have in common. Bytes and seconds throughout."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType


class MeshAxis(msgspec.Struct, frozen=True):
    """One axis of the mesh: its name, its size, and the level of links that it lies in."""

    name: str
    size: int
    level: str


class MeshDescription(msgspec.Struct, frozen=True):
    """The mesh of the devices, its outermost axis first."""

    axes: list[MeshAxis]


class OperatorName(msgspec.Struct, frozen=True):
    """An operator of the graph by its name and kind."""

    name: str
    kind: str


class ComputeShares(msgspec.Struct, frozen=True):
    """The fractions of a compute time that were measured, interpolated and modelled."""

    measured: float
    interpolated: float
    modelled: float


class Provenance(msgspec.Struct, frozen=True):
    """What the numbers of an answer are based on, in words."""

    profile: str
    compute: str
    communication: str
    memory: str


class Expected(msgspec.Struct, frozen=True):
    """Where a step and its peak are expected, lowest and highest: four of five published steps on
    such GPUs (`gpu`) were within these ranges of their predictions (docs/accuracy.md).

    `steps` is how many were compared, of `projects`. `peak_bytes` is there where enough of them
    have memory.
    """

    step_s: list[float]
    steps: int
    projects: int
    gpu: str
    peak_bytes: list[int] | UnsetType = UNSET


class Certificate(msgspec.Struct, frozen=True):
    """How far from the true frontier of the searched space the answer is at most.

    `epsilon` is the relative error in memory and in time, null without a proof;
    `time_lower_bound_s` is below the time of every strategy that fits, if it is known.
    """

    exact: bool
    epsilon: float | None
    status: str
    time_lower_bound_s: float | UnsetType = UNSET


class TofuStep(msgspec.Struct, frozen=True):
    """One step of Tofu's recursion: the axis, its groups of workers, and the bytes moved."""

    axis: str
    worker_groups: int
    bytes: float


class TofuReport(msgspec.Struct, frozen=True):
    """The result of method `tofu` (Tofu §5.2)."""

    steps: list[TofuStep]
    stored_bytes: float
    renamed_groups: int


class SearchReport(msgspec.Struct, frozen=True):
    """What a search took; sizes are those of its first number of micro-batches."""

    seconds: float
    peak_rss_bytes: int
    method: str
    operators: int
    groups: int
    edges: int
    configurations_max: int
    configurations_mean: float
    tofu: TofuReport | UnsetType = UNSET


EXPERT_PARALLELISM = "expert parallelism"
"""Experts on devices of their own, to which tokens are sent by all-to-all."""


def not_searched_text(not_searched: list[str] | UnsetType) -> str:
    """Returns what an answer says first where strategies were not searched, else nothing."""
    if not not_searched:
        return ""
    return (
        f"without {', '.join(not_searched)} (tokens sent to experts by all-to-all), which mixtures "
        "of experts are trained with: a faster strategy may exist, and nothing is proven"
    )


class Heading(msgspec.Struct, frozen=True, kw_only=True):
    """What an answer on one number of GPUs says first: the question, the mesh, the provenance.

    `not_searched` names strategies that such a model is trained with and that no search has
    (`expert parallelism`, for mixtures of experts). Nothing is then proven: certificates and gaps
    are null. `program` says in words what launches a step and how it runs; documents of earlier
    versions have none.
    """

    graph: str
    graph_name: str
    batch_size: int | None
    hardware: str
    hardware_id: str
    gpus: int
    nodes: int
    mesh: MeshDescription
    optimizer: str
    precision: str
    overlap: bool
    device_memory_bytes: float
    memory_limit_bytes: float
    provenance: Provenance
    undescribed_operators: list[OperatorName]
    replicated_operators: list[OperatorName]
    warnings: list[str]
    not_searched: list[str] | UnsetType = UNSET
    program: str | UnsetType = UNSET
    tune: str | UnsetType = UNSET


class PlacePeak(msgspec.Struct, frozen=True):
    """The replayed peak on the devices of one place, and what one of them may use."""

    place: str
    peak_bytes: int
    memory_limit_bytes: float


class Step(msgspec.Struct, frozen=True):
    """One collective of a re-scheduling: over which axes, with how many bytes, to which layout.

    `proportion` is that of the result, where devices are of several kinds.
    """

    operation: str
    axes: list[str]
    size_bytes: float
    time_s: float
    result: list[str]
    proportion: int | UnsetType = UNSET


Layout = list[str]
"""One word per mesh axis: `replicate`, `partial` or `shard(dimension)`."""

Details = dict[str, Any]
"""Members that depend on the method."""


def schema_of(kind: type[msgspec.Struct]) -> str:
    """Returns the `schema` member of a kind of document: `shardwise.plan/1`."""
    return str(kind.__struct_config__.tag)
