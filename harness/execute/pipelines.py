"""Random pipelines as documents: what the search could choose, and more, without searching.

Cuts, schedule, micro-batches and a strategy of the whole model on the devices of one stage are
drawn. Stages need not agree on anything: a tensor leaves its stage in the layout in which it is
made there, and the reader's edge moves it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from msgspec import UNSET

from harness.answers import document
from harness.execute.plans import unsearched
from harness.execute.strategies import HARDWARE, ZERO, costed
from shardwise import documents
from shardwise.answers.frontier import mesh_description
from shardwise.answers.strategy import Strategy
from shardwise.cost.assemble import SearchProblem
from shardwise.documents.pipeline import PipelinePrediction, PlannedStage
from shardwise.graph import Graph
from shardwise.hardware import Mesh, load_hardware
from shardwise.pipeline.placement import Placement
from shardwise.pipeline.schedules import SCHEDULES
from shardwise.search.pipelines.subject import StagedSubject
from shardwise.search.pipelines.units import Units

ONE_STAGE = ("1f1b", "1f1b-eager", "gpipe")
"""The schedules with one stage on each rank and a whole backward; seeds take turns."""


@dataclass
class Pipelines:
    """Random pipelines of one graph; strategies are costed once for each kind of options."""

    graph: Graph
    precision: str = "captured"
    pins: tuple[str, ...] = ()
    problems: dict[Any, SearchProblem] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._staged = StagedSubject.of(self.graph)

    @property
    def units(self) -> int:
        """The number of units: the most stages."""
        return len(self.unit_names)

    @property
    def unit_names(self) -> Sequence[str]:
        """What the units are called, in their order."""
        return Units.of(self._staged.subject.patterns).names

    def pipeline(
        self,
        gpus: int,
        stages: int,
        seed: int,
        *,
        schedule: str | None = None,
        zero: tuple[int, ...] | None = None,
        recompute: str = "auto",
        micro_batches: int = 4,
        bounds: tuple[int, ...] | None = None,
        stages_per_rank: int = 1,
    ) -> dict[str, Any]:
        """Returns one seed's pipeline; seeds take turns in schedules and ZeRO stages."""
        zero = ZERO[seed % len(ZERO)] if zero is None else zero
        schedule = ONE_STAGE[seed % len(ONE_STAGE)] if schedule is None else schedule
        devices = gpus * stages_per_rank // stages
        problem = self._problem(devices, zero, recompute, micro_batches)
        random = np.random.default_rng((seed, gpus, stages))
        choices = [int(random.integers(len(cost.time_s))) for cost in problem.costs]
        edges = []
        for edge in problem.edges:
            cell = edge.table.cell(choices[edge.source], choices[edge.target])
            edges.append(int(random.integers(int(edge.table.count[cell]))))
        units = Units.of(self._staged.subject.patterns)
        if bounds is None:
            cuts = random.choice(np.arange(1, len(units)), stages - 1, replace=False)
            bounds = (0, *sorted(cuts.tolist()), len(units))
        ranks = Placement(stages // stages_per_rank, stages_per_rank, SCHEDULES[schedule].shape)
        strategy = Strategy(problem, choices, edges)
        return document(self._document(gpus, seed, schedule, ranks, problem, strategy, bounds))

    def _problem(
        self, devices: int, zero: tuple[int, ...], recompute: str, micro_batches: int
    ) -> SearchProblem:
        key = (devices, zero, recompute, micro_batches)
        if key not in self.problems:
            self.problems[key] = costed(
                *(self._staged.subject, devices, zero, recompute, micro_batches),
                self.precision,
                self.pins,
            )
        return self.problems[key]

    def _document(
        self,
        gpus: int,
        seed: int,
        schedule: str,
        ranks: Placement,
        problem: SearchProblem,
        strategy: Strategy,
        bounds: tuple[int, ...],
    ) -> documents.Pipeline:
        hardware = load_hardware(HARDWARE)
        devices = gpus // ranks.ranks
        mesh = Mesh.build(hardware, gpus)
        units = Units.of(self._staged.subject.patterns)
        stages = [
            PlannedStage(
                first_device=ranks.rank_of(number) * devices,
                devices=devices,
                first_unit=units.names[first],
                last_unit=units.names[last - 1],
                units=last - first,
                label="",
                kept_micro_batches=0,
                forward_s=0.0,
                backward_s=0.0,
                update_s=0.0,
                hop_s=None,
                idle=0.0,
                peak_bytes=0,
                groups=units.groups_of(first, last),
            )
            for number, (first, last) in enumerate(pairwise(bounds))
        ]
        return documents.Pipeline(
            id=f"random:{seed}",
            **unsearched(self._staged.subject, hardware, mesh, problem),
            mesh=mesh_description(mesh),
            stage_mesh=mesh_description(problem.context.mesh),
            schedule=schedule,
            stages=stages,
            predicted=PipelinePrediction(0.0, 0.0, 0, 0, None, None, 0.0),
            groups=strategy.groups([None] * len(problem.costs)),
            edges=strategy.edges(),
            stages_per_rank=ranks.stages_per_rank if ranks.stages_per_rank > 1 else UNSET,
        )
