"""Pipelines as points of frontiers, curves and quotes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import inf
from time import monotonic
from typing import Protocol

import numpy as np
from msgspec import UNSET

from shardwise.answers.certificates import not_searched
from shardwise.answers.label import Labels
from shardwise.cost.options import Options, Progress
from shardwise.cost.program import assumed
from shardwise.documents.pipeline_point import PipelinePoint
from shardwise.errors import BadInput
from shardwise.graph import Graph
from shardwise.hardware import Devices, Hardware
from shardwise.pipeline.asked import NO_STAGES
from shardwise.search.pipelines.pipeline import Pipeline
from shardwise.search.pipelines.search import PipelineSearch
from shardwise.search.pipelines.searched import check_schedules
from shardwise.search.pipelines.subject import StagedSubject
from shardwise.search.pipelines.units import Units
from shardwise.search.search import Infeasible


class FastestPipelines(Protocol):
    """Finds the fastest pipeline on successive numbers of devices."""

    seconds: float

    def fastest(
        self, hardware: Hardware, gpus: Devices, progress: Progress, cutoff_s: float | None = None
    ) -> PipelinePoint | None:
        """Returns it if one fits and is faster than `cutoff_s`."""


@dataclass
class PipelinePoints:
    """The pipelines of one graph, on successive numbers of devices.

    `stages` are numbers, None for all that graph and devices allow; 1 adds nothing, since these
    answers always have strategies without a pipeline. `seconds` is the time of all searches so far.
    """

    graph: Graph
    options: Options
    stages: Sequence[int] | None
    schedules: Sequence[str]
    seconds: float = 0.0

    def __post_init__(self) -> None:
        """Raises `BadInput` as `check_schedules`, and for numbers of stages that the graph allows
        on no devices."""
        check_schedules(self.schedules)
        units = len(Units.of(self._staged.subject.patterns))
        for count in self.stages or ():
            if not 1 <= count <= units:
                raise BadInput(
                    f"{count} stages of {units} units", field="stages", expected=f"1 to {units}"
                )

    @classmethod
    def asked(
        cls,
        graph: Graph,
        options: Options,
        stages: Sequence[int] | None,
        schedules: Sequence[str],
    ) -> PipelinePoints | None:
        """Returns the pipelines that a query asks for, or None."""
        if stages is not None and set(stages) == set(NO_STAGES):
            return None
        return cls(graph, options, stages, schedules)

    def frontier(
        self, hardware: Hardware, gpus: Devices, progress: Progress
    ) -> list[PipelinePoint]:
        """Returns the pipelines that no other beats in peak and step, by ascending peak, each with
        its bound.

        Raises `BadInput` as `PipelineSearch.frontier`.
        """
        search = self._search(hardware, gpus, progress)
        started = monotonic()
        counts = search.counts() if self.stages is None else sorted(set(self.stages) - {1})
        points = [
            pipeline_point(one.pipeline, one.least_s)
            for one in search.certified(counts)
            if one.pipeline is not None
        ]
        self.seconds += monotonic() - started
        return points

    def fastest(
        self,
        hardware: Hardware,
        gpus: Devices,
        progress: Progress,
        cutoff_s: float | None = None,
    ) -> PipelinePoint | None:
        """Returns the fastest pipeline that fits, over the allowed numbers of stages; None if none
        is faster than `cutoff_s`."""
        started = monotonic()
        try:
            search = self._search(hardware, gpus, progress)
        except Infeasible:
            return None
        counts = [p for p in search.counts() if self.stages is None or p in self.stages]
        fastest = search.fastest(counts, inf if cutoff_s is None else cutoff_s)
        self.seconds += monotonic() - started
        if fastest.pipeline is None:
            return None
        return pipeline_point(fastest.pipeline, fastest.least_s)

    @cached_property
    def _staged(self) -> StagedSubject:
        return StagedSubject.of(self.graph)

    def _search(self, hardware: Hardware, gpus: Devices, progress: Progress) -> PipelineSearch:
        options = assumed(self.options, hardware)
        return PipelineSearch(
            self.graph, hardware, gpus, options, progress, self.schedules, self._staged
        )


def pipeline_point(pipeline: Pipeline, least_s: float) -> PipelinePoint:
    """Returns a pipeline as a point; `least_s` is a lower bound on every queried pipeline, for a
    frontier within this one's peak."""
    kinds = pipeline.kinds
    labels, batch = StageLabels(pipeline), pipeline.search.subject.graph.batch_size
    left_out = not_searched(pipeline.search.subject)
    return PipelinePoint(
        id=pipeline_id(pipeline),
        stages=pipeline.stages,
        schedule=pipeline.schedule,
        micro_batches=pipeline.micro_batches,
        step_s=pipeline.step_s,
        samples_per_s=None if batch is None else batch / pipeline.step_s,
        peak_bytes=round(pipeline.scaled_peak_bytes),
        idle=pipeline.idle,
        labels=[
            labels.of(pipeline.units.groups_of(first, last))
            for first, last in pairwise(pipeline.bounds)
        ],
        first_units=[pipeline.units.names[first] for first in pipeline.bounds[:-1]],
        stages_per_rank=pipeline.stages_per_rank if pipeline.stages_per_rank > 1 else UNSET,
        gap=pipeline.step_s / least_s - 1.0 if least_s > 0 and not left_out else None,
        groups=UNSET if kinds is None else [kinds.groups[number] for number in kinds.of_rank],
    )


def pipeline_id(pipeline: Pipeline) -> str:
    """Returns the content id, a hash of the query and the choices."""
    search = pipeline.search
    digest = hashlib.sha256()
    asked = (
        search.subject.id,
        search.hardware.id,
        pipeline.mesh.gpus,
        search.options.optimizer,
        search.options.precision,
    )
    chosen = (pipeline.schedule, pipeline.bounds, pipeline.micro_batches)
    digest.update(repr((asked, chosen)).encode())
    if pipeline.stages_per_rank > 1:
        digest.update(repr(pipeline.stages_per_rank).encode())
    if pipeline.kinds is not None:
        kinds = pipeline.kinds
        placed = [kinds.groups[number] for number in kinds.of_rank]
        digest.update(repr((kinds.whole.id, str(kinds.bundle), placed)).encode())
    for cost, k in zip(search.problem.costs, pipeline.choices, strict=True):
        digest.update(cost.assignment[k].tobytes())
        digest.update(repr((cost.zero[k], cost.zero_axes[k], cost.recompute[k])).encode())
    digest.update(pipeline.edge_choices.astype("<u4").tobytes())
    return f"sha256:{digest.hexdigest()}"


class StageLabels:
    """Labels the strategies of stages."""

    def __init__(self, pipeline: Pipeline) -> None:
        # Configurations have the same names on all kinds of devices.
        self._problem = pipeline.search.problem
        self._choices = pipeline.choices
        self._roles = Labels(self._problem).groups

    def of(self, groups: Sequence[int]) -> str:
        """Returns the label of the stage of some groups, without its micro-batches."""
        problem = replace(
            self._problem,
            context=replace(self._problem.context, micro_batches=1),
            costs=[self._problem.costs[g] for g in groups],
            edges=[],
        )
        labels = Labels(problem, [self._roles[g] for g in groups])
        return labels.of(np.array([self._choices[g] for g in groups]))
