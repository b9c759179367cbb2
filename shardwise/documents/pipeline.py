"""`shardwise.pipeline/1`: a model cut into stages, and how each is split over its devices."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

import msgspec
from msgspec import UNSET, UnsetType

from shardwise.documents.common import (
    Certificate,
    Expected,
    MeshDescription,
    OperatorName,
    Provenance,
    SearchReport,
)
from shardwise.documents.parallelism import PlannedTrainer
from shardwise.documents.plan import Plan, PlannedEdge, PlannedGroup, Stage
from shardwise.documents.prediction import Predicted
from shardwise.documents.timeline import PipelineTimeline
from shardwise.errors import BadInput


class PipelinePrediction(Predicted, frozen=True):
    """What a pipeline is predicted to take.

    `idle` is the share of the step in which a device has nothing to do, in the mean: the bubble,
    and what unequal stages add to it. `peak_bytes` is the largest peak, reached in stage
    `peak_stage`; on several kinds of devices that which is most of its limit. `tokens_per_s` is
    null where samples are not sequences of tokens. `expected` is as in a plan's prediction.
    """

    step_s: float
    idle: float
    peak_bytes: int
    peak_stage: int
    samples_per_s: float | None
    tokens_per_s: float | None
    model_flops_utilisation: float
    causal_flops_utilisation: float | UnsetType = UNSET
    expected: Expected | UnsetType = UNSET


class PlannedStage(Stage, frozen=True):
    """A stage: devices `first_device` to `first_device` + `devices` - 1 have the units of the model
    from `first_unit` to `last_unit`.

    `label` is its strategy in the words of parallel training. It keeps at most `kept_micro_batches`
    for backward. `forward_s` and `backward_s` are the seconds of a micro-batch, `update_s` those at
    the end of the step, `hop_s` those in which a micro-batch's tensors go to the next stage, null
    for the last. `idle` is the share of the step in which its devices wait. `groups` are its groups
    by position among those of the pipeline. `kept_bytes` of the peak are what the micro-batches
    that it keeps take at most; documents of earlier versions have none. Where devices are of
    several kinds, `group` is that of the profile whose devices the stage has, `kind` what these
    are, and `memory_limit_bytes` what one of them may use. Where the schedule splits backward,
    `weights_s` of `backward_s` are gradients of weights, for which at most `waiting_micro_batches`
    wait at a time.
    """

    first_device: int
    devices: int
    first_unit: str
    last_unit: str
    units: int
    label: str
    kept_micro_batches: int
    forward_s: float
    backward_s: float
    update_s: float
    hop_s: float | None
    idle: float
    peak_bytes: int
    groups: list[int]
    kept_bytes: int | UnsetType = UNSET
    group: str | UnsetType = UNSET
    kind: str | UnsetType = UNSET
    memory_limit_bytes: float | UnsetType = UNSET
    weights_s: float | UnsetType = UNSET
    waiting_micro_batches: int | UnsetType = UNSET


class WithoutPipeline(msgspec.Struct, frozen=True):
    """The fastest strategy that has all operators on all devices; nothing where none fits."""

    label: str
    micro_batches: int
    step_s: float
    peak_bytes: int


class Pipeline(Plan, frozen=True, tag_field="schema", tag="shardwise.pipeline/1"):
    """The fastest pipeline found for a graph on a number of GPUs.

    `mesh` is that of all devices, `stage_mesh` that of one stage, which the splits of `groups` and
    `edges` are of. `schedule` says in which order stages run their micro-batches
    (docs/pipelines.md). `certificate` is about every pipeline with the numbers of stages and of
    micro-batches and the schedules that were asked for and, where `without_pipeline` is there,
    every strategy without one. `without_pipeline` is left out where it was not asked for.
    `timeline` is the step over time; documents of earlier versions have none.
    `trainer` is there where stages have equal layers and the same strategy of a trainer: its
    `parallelism` is that of each stage. `kernels` says how light operators run.
    `stages_per_rank` is there where devices have several stages: of p groups of devices the r-th
    has the stages r, r + p, r + 2p, …, or r and 2p - 1 - r under `zbv` and `dualpipev`. `bundle` is
    there where devices are of several kinds, and says how many of which group; device memory and
    limit are then the least. `not_searched` is as in a frontier.
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
    stage_mesh: MeshDescription
    optimizer: str
    precision: str
    device_memory_bytes: float
    memory_limit_bytes: float
    provenance: Provenance
    undescribed_operators: list[OperatorName]
    replicated_operators: list[OperatorName]
    warnings: list[str]
    micro_batches: int
    schedule: str
    stages: list[PlannedStage]
    predicted: PipelinePrediction
    certificate: Certificate
    groups: list[PlannedGroup]
    edges: list[PlannedEdge]
    search: SearchReport
    without_pipeline: WithoutPipeline | UnsetType | None = UNSET
    timeline: PipelineTimeline | UnsetType = UNSET
    trainer: PlannedTrainer | UnsetType = UNSET
    kernels: str | UnsetType = UNSET
    stages_per_rank: int | UnsetType = UNSET
    bundle: str | UnsetType = UNSET
    not_searched: list[str] | UnsetType = UNSET
    program: str | UnsetType = UNSET
    tune: str | UnsetType = UNSET

    @property
    def piped(self) -> bool:
        """Whether micro-batches go from stage to stage."""
        return True

    @property
    def pipeline_schedule(self) -> str:
        """In which order stages run their micro-batches."""
        return self.schedule

    @property
    def replayed_s(self) -> float:
        """The seconds of a step as it was replayed."""
        return self.predicted.step_s

    @property
    def peak_limit_bytes(self) -> float:
        """What a device of the stage with the peak may use."""
        return self.stages[self.predicted.peak_stage].memory_limit_bytes or self.memory_limit_bytes

    @property
    def kinds(self) -> list[str]:
        """The kind of device of every rank, in their order; nothing where all are alike."""
        first = self.stages[: self.ranks]
        return [s.kind for s in first if s.kind is not UNSET for _ in range(s.devices)]


def check_stages(plan: Plan, file: str | None = None) -> None:
    """Raises `BadInput` for a plan without stages, for stages that ranks cannot share evenly,
    and for stages of groups that it lacks."""
    if not plan.stages:
        raise BadInput("no stages", file=file, field="stages", expected="at least one")
    each = plan.stages_per_rank
    if each is not UNSET and (each < 1 or len(plan.stages) % each):
        raise BadInput(
            f"{len(plan.stages)} stages, {each} on each rank",
            file=file,
            field="stages_per_rank",
            expected="a divisor of the number of stages",
        )
    for number, stage in enumerate(plan.stages):
        for place, group in enumerate(stage.groups):
            if not 0 <= group < len(plan.groups):
                raise BadInput(
                    f"there is no group {group}",
                    file=file,
                    field=f"stages[{number}].groups[{place}]",
                    expected=f"0 to {len(plan.groups) - 1}",
                )


def shared_scope(stages: Sequence[PlannedStage]) -> int:
    """Returns how many letters of scopes the units' names of all stages begin with."""
    names = [name for stage in stages for name in (stage.first_unit, stage.last_unit)]
    scopes = [name.split(".")[:-1] for name in names]
    shared = takewhile(lambda parts: len(set(parts)) == 1, zip(*scopes, strict=False))
    return sum(len(parts[0]) + 1 for parts in shared)


def units_text(stage: PlannedStage, outer: int) -> str:
    """Returns text such as `h.6 to h.8`; names are without their first `outer` letters."""
    first = stage.first_unit[outer:]
    return f"{first} to {stage.last_unit[outer:]}" if stage.units > 1 else first
