"""Random pipelines on a measured profile, each with what is predicted of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardwise import documents
from shardwise.answers.pipelines import pipeline_document
from shardwise.cost.options import Options, quiet
from shardwise.cost.step_settings import StepSettings
from shardwise.graph import Graph
from shardwise.hardware import Hardware, hardware_from_document
from shardwise.measure.operators import Effort, add_operators
from shardwise.pipeline.placement import Placement
from shardwise.pipeline.schedules import SCHEDULES
from shardwise.replay.replay import Replayer
from shardwise.replay.stages import StageReplayer
from shardwise.search.pipelines.hops import StageAxes
from shardwise.search.pipelines.pipeline import Pipeline
from shardwise.search.pipelines.subject import StagedSubject
from shardwise.search.pipelines.units import Units
from shardwise.search.search import Draft, Search, mesh_of


@dataclass
class DrawnPipelines:
    """Random pipelines of one graph on `gpus` devices in `ranks` groups.

    The calls that all configurations of a micro-batch make on the devices of a group are measured
    here, for `operators_s` seconds by `processes` processes.
    """

    graph: Graph
    profile: Mapping[str, Any]
    gpus: int
    ranks: int
    micro_batches: Sequence[int]
    operators_s: float
    processes: int

    def __post_init__(self) -> None:
        self._options = Options(
            overlap=False,
            step=StepSettings("cpu", "for-loop", 64),
            micro_batches=tuple(self.micro_batches),
        )
        self._staged = StagedSubject.of(self.graph)
        self._units = Units.of(self._staged.subject.patterns)
        document = dict(self.profile)
        if self.operators_s:
            effort = Effort(time_limit_s=self.operators_s, ranks=self.processes, threads=1)
            document, _ = add_operators(
                document, self.graph, self.gpus // self.ranks,
                options=self._options, of="all", effort=effort,
            )  # fmt: skip
        self.hardware: Hardware = hardware_from_document(document)
        self._searches = {count: self._search(count) for count in self.micro_batches}

    def _search(self, micro_batches: int) -> Search:
        mesh = mesh_of(self.hardware, self.gpus // self.ranks)
        return Draft.of(
            self._staged.subject, self.hardware, mesh, self._options, quiet, micro_batches
        ).joined(quiet)

    def _replayer(self, search: Search, *, splits: bool) -> StageReplayer:
        whole = search.own_replayer
        step, kits = search.options.step, search.subject.kits
        split = Replayer(search.problem, step, kits, split=True) if splits else whole
        return StageReplayer(split, self._units.of_group)

    def of(self, seed: int, schedule: str, stages_per_rank: int = 1) -> documents.Pipeline:
        """Returns one seed's pipeline: cuts, micro-batches and configurations are drawn."""
        random = np.random.default_rng((seed, self.gpus, self.ranks))
        search = self._searches[int(random.choice(self.micro_batches))]
        problem = search.problem
        choices = np.array([random.integers(len(c.time_s)) for c in problem.costs], dtype=np.uint32)
        edges = np.zeros(len(problem.edges), dtype=np.uint32)
        for e, edge in enumerate(problem.edges):
            cell = edge.table.cell(choices[edge.source], choices[edge.target])
            edges[e] = random.integers(int(edge.table.count[cell]))
        stages = self.ranks * stages_per_rank
        inner = random.choice(np.arange(1, len(self._units)), stages - 1, replace=False)
        bounds = (0, *sorted(inner.tolist()), len(self._units))
        placement = Placement(self.ranks, stages_per_rank, SCHEDULES[schedule].shape)
        placed = [placement.stages_of(rank) for rank in range(self.ranks)]
        replayer = self._replayer(search, splits=SCHEDULES[schedule].splits)
        mesh = mesh_of(self.hardware, self.gpus)
        axes = StageAxes.of(self.hardware, mesh, self.ranks)
        assert axes is not None, "the devices are divisible so"
        drawn = Pipeline(
            search, mesh, self._units, self._staged.tied, axes, schedule, bounds, choices, edges,
            replayer.replay(choices, edges, bounds, placed), stages_per_rank,
        )  # fmt: skip
        return pipeline_document(drawn, 0.0, 0.0)
