"""`shardwise.plan/1`: a plan of one stage, spelled out far enough to be executed."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, UnsetType

from shardwise.documents.common import (
    Certificate,
    MeshDescription,
    OperatorName,
    Provenance,
    SearchReport,
)
from shardwise.documents.parallelism import PlannedTrainer
from shardwise.documents.plan import (
    Execution,
    Neighbour,
    Plan,
    PlannedCluster,
    PlannedEdge,
    PlannedGroup,
    PlannedSchedule,
    Stage,
)
from shardwise.documents.prediction import Prediction
from shardwise.documents.timeline import Timeline


class OnlyStage(Stage, frozen=True):
    """The stage of a plan that has one: all devices run all groups."""

    first_device: int
    devices: int
    label: str
    peak_bytes: int
    groups: Sequence[int]


class WholePlan(Plan, frozen=True, tag_field="schema", tag="shardwise.plan/1"):
    """One strategy for a graph on a number of GPUs.

    `neighbours` are there where the replayed time was searched near the memory limit. `framework`
    launches the work, `kernels` says how light operators run (`--framework`, `--kernels`; `assumed`
    where neither was asked for and they are compiled, as usual on GPUs), `execution` what else of
    running a step memory depends on. `trainer` is there for a plan that a trainer can run as it is
    (`--space`). `cluster` is there for devices of several kinds; memory is then scaled to the
    devices with the least (docs/mixed.md). `order` are the graph's operators as forward runs them;
    `schedule` is there if that is not the graph's own order, or backward not the reverse. `program`
    says in words what runs the step. `timeline` is the replayed step over time (docs/replay.md).
    `not_searched` is as in a frontier. `published` is what others measured of such a model on such
    GPUs, where that is known.
    """

    id: str
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
    micro_batches: int
    objective: str
    predicted: Prediction
    groups: list[PlannedGroup]
    edges: list[PlannedEdge]
    order: list[str]
    certificate: Certificate
    search: SearchReport
    neighbours: list[Neighbour] | UnsetType = UNSET
    framework: str | UnsetType = UNSET
    kernels: str | UnsetType = UNSET
    execution: Execution | UnsetType = UNSET
    trainer: PlannedTrainer | UnsetType = UNSET
    cluster: PlannedCluster | UnsetType = UNSET
    schedule: PlannedSchedule | UnsetType = UNSET
    timeline: Timeline | UnsetType = UNSET
    not_searched: list[str] | UnsetType = UNSET
    program: str | UnsetType = UNSET
    tune: str | UnsetType = UNSET
    assumed: bool | UnsetType = UNSET
    published: str | UnsetType = UNSET

    @property
    def stages(self) -> Sequence[OnlyStage]:
        """The one stage that all devices have."""
        label, peak_bytes = self.predicted.label or "", self.predicted.peak_bytes
        return [OnlyStage(0, self.gpus, label, peak_bytes, range(len(self.groups)))]

    @property
    def replayed_s(self) -> float:
        """The seconds of a step as it was replayed."""
        return self.predicted.replayed_time_s

    @property
    def step_s(self) -> float:
        """The seconds of a step by which strategies were ranked: replayed, or summed."""
        return self.predicted.replayed_time_s if self.overlap else self.predicted.time_s

    @property
    def reordered(self) -> PlannedSchedule | UnsetType:
        """An order of execution other than the program's."""
        return self.schedule


WholePlan.__name__ = "Plan"  # as published schemas call it
