"""`Explanation`: how each group of a plan is split, and what it costs.

It has the two written forms of plans: `shardwise.explanation/1` is of a plan of one stage,
`shardwise.pipeline-explanation/1` of one with several.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET, UnsetType

from shardwise.documents.common import ComputeShares, MeshDescription
from shardwise.documents.pipeline import PipelinePrediction
from shardwise.documents.plan import Neighbour
from shardwise.documents.prediction import Prediction


class ExplainedOperator(msgspec.Struct, frozen=True):
    """An operator, and what each direction of its compute time is based on."""

    name: str
    kind: str
    compute_from: dict[str, str]


class ExplainedNextBest(msgspec.Struct, frozen=True):
    """The best other choice of a group in words, what it would add, and why it was not taken."""

    split: str
    zero: int
    zero_axes: list[str]
    recompute: bool
    added_time_s: float
    added_memory_bytes: float
    why_not: str


class ExplainedGroup(msgspec.Struct, frozen=True):
    """Groups that are split alike and cost alike; `repeats` is how many.

    `kind` are its kinds of operators, the slowest first; `slowest` is the name of the operator that
    computes longest, after which people call it: a group has the name of its first, which may be a
    view, or the table that a tied output layer shares.
    """

    name: str
    kind: str
    repeats: int
    split: str
    memory_bytes: float
    parameter_bytes: float
    activation_bytes: float
    compute_s: float
    compute_shares: ComputeShares | None
    communication_s: float
    operators: list[ExplainedOperator]
    next_best: ExplainedNextBest | None
    slowest: str | UnsetType = UNSET

    @property
    def all_s(self) -> float:
        """The seconds of all repeats."""
        return (self.compute_s + self.communication_s) * self.repeats


class ExplainedEdge(msgspec.Struct, frozen=True):
    """Crossings that re-schedule alike; `repeats` is how many."""

    source: str
    target: str
    repeats: int
    forward: list[str]
    backward: list[str]
    kept: str
    memory_bytes: float
    time_s: float


class Totals(msgspec.Struct, frozen=True):
    """The sums of all rows, which equal the plan's prediction."""

    parameter_bytes: float
    activation_bytes: float
    edge_bytes: float
    fixed_bytes: float
    memory_bytes: float
    compute_s: float
    synchronisation_s: float
    rescheduling_s: float
    time_s: float


class ExplainedNeighbour(Neighbour, frozen=True):
    """A neighbour of the plan: how much longer its step is, relative, and all of it in words."""

    slower: float
    text: str


class ExplainedStage(msgspec.Struct, frozen=True):
    """A stage of a pipeline in a sentence, and its groups: those that are split and cost alike are
    one. `busy_s` is how long its devices compute and communicate in a step."""

    text: str
    busy_s: float
    groups: list[ExplainedGroup]


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a plan is what it is; what a form does not write is empty or unset."""

    if TYPE_CHECKING:
        graph_name: str
        hardware: str
        gpus: int
        mesh: MeshDescription
        edges: list[ExplainedEdge]
        text: list[str]

    @property
    def stages(self) -> Sequence[ExplainedStage]:
        """What each of several stages does."""
        return ()

    @property
    def groups(self) -> Sequence[ExplainedGroup]:
        """The groups of all stages."""
        return [group for stage in self.stages for group in stage.groups]

    @property
    def neighbours(self) -> list[ExplainedNeighbour] | UnsetType:
        """Why not another strategy."""
        return UNSET

    @property
    def rows(self) -> Sequence[tuple[int, ExplainedGroup]]:
        """The groups, those that take most of the step first, each with its stage."""
        rows = [(number, row) for number, stage in enumerate(self.stages) for row in stage.groups]
        return sorted(rows, key=lambda row: -row[1].all_s)


class WholeExplanation(Explanation, frozen=True, tag_field="schema", tag="shardwise.explanation/1"):
    """Why a plan is what it is; `neighbours` say why not another, as far as the plan has them."""

    plan: str
    graph_name: str
    hardware: str
    gpus: int
    mesh: MeshDescription
    predicted: Prediction
    groups: list[ExplainedGroup]
    edges: list[ExplainedEdge]
    totals: Totals
    text: list[str]
    neighbours: list[ExplainedNeighbour] | UnsetType = UNSET

    @property
    def rows(self) -> Sequence[tuple[int, ExplainedGroup]]:
        """The groups, those that take most of the step first, each with its stage."""
        return [(0, row) for row in sorted(self.groups, key=lambda row: -row.all_s)]


WholeExplanation.__name__ = "Explanation"  # as published schemas call it


class PipelineExplanation(
    Explanation, frozen=True, tag_field="schema", tag="shardwise.pipeline-explanation/1"
):
    """Why a pipeline's step is what it is; `slowest_stage` counts from 0.

    `hops_s` is how long a micro-batch's tensors and their gradients travel between all stages.
    """

    pipeline: str
    graph_name: str
    hardware: str
    gpus: int
    mesh: MeshDescription
    stage_mesh: MeshDescription
    predicted: PipelinePrediction
    slowest_stage: int
    hops_s: float
    stages: list[ExplainedStage]
    edges: list[ExplainedEdge]
    text: list[str]
