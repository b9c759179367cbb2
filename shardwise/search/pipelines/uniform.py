"""Uniform pipelines: stages of equal layers, all with one strategy, as trainers run them.

The first and last stage may have other numbers of layers (Megatron-LM's
`--decoder-first-pipeline-num-layers`, or embedding and loss counted as layers). Layers are blocks
(items of lists of modules, `sharding/segments.py`). Operators before the first block are in the
first stage, those after a block in that block's stage. The strategy is one of the whole model on
the devices of a stage, costed and replayed as for searched pipelines (`staged.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from shardwise.cost.options import Options, Progress
from shardwise.errors import BadInput
from shardwise.graph import Graph
from shardwise.hardware import Hardware, Mesh
from shardwise.pipeline.keeping import keeping
from shardwise.pipeline.schedules import SCHEDULES
from shardwise.replay.replay import Replayer
from shardwise.replay.stages import FEWEST, StageReplayer
from shardwise.search.pipelines.hops import StageAxes
from shardwise.search.pipelines.pipeline import Pipeline
from shardwise.search.pipelines.subject import StagedSubject, Tied
from shardwise.search.pipelines.units import Units
from shardwise.search.search import Draft, Search, mesh_of
from shardwise.sharding.segments import Blocks
from shardwise.texts import counted

Choices = NDArray[np.uint32]


@dataclass
class UniformStages:
    """A model in stages of equal layers with a number of micro-batches.

    `search` has the whole model on the devices of one stage, without points.
    """

    search: Search
    mesh: Mesh
    units: Units
    tied: Sequence[Tied]
    axes: StageAxes
    bounds: tuple[int, ...]
    replayer_of: Callable[[], StageReplayer]
    """Returns the replayer of stages, built on first use."""
    stages_per_rank: int = 1
    scattered: bool = False
    """Whether equal shares are sent in parts (`hops.py`)."""

    @property
    def ranks(self) -> int:
        """The number of ranks, with `stages_per_rank` stages each."""
        return (len(self.bounds) - 1) // self.stages_per_rank

    def pipeline(self, schedule: str, choices: Choices, edge_choices: Choices) -> Pipeline:
        """Returns the pipeline of a strategy, (groups,) and (edges,) of `search.problem`, whether
        or not it fits.

        Raises `BadInput` if the schedule does not allow these ranks, stages or micro-batches.
        """
        order = keeping(schedule, self.ranks, self.search.micro_batches, self.stages_per_rank).order
        placed = [order.placement.stages_of(rank) for rank in range(self.ranks)]
        copies = [one.copies for one in self.tied]
        replayer = self._split_replayer if SCHEDULES[schedule].splits else self.replayer_of()
        return Pipeline(
            self.search,
            self.mesh,
            self.units,
            self.tied,
            self.axes,
            schedule,
            self.bounds,
            choices,
            edge_choices,
            replayer.replay(choices, edge_choices, self.bounds, placed, copies),
            self.stages_per_rank,
            self.scattered,
        )

    @cached_property
    def _split_replayer(self) -> StageReplayer:
        """The replayer of stages with split backward."""
        search = self.search
        step, kits = search.options.step, search.subject.kits
        return StageReplayer(Replayer(search.problem, step, kits, split=True), self.units.of_group)


class UniformModel:
    """A graph on a number of devices, to be cut into stages of equal layers."""

    def __init__(
        self,
        graph: Graph,
        hardware: Hardware,
        gpus: int,
        staged: StagedSubject | None = None,
        *,
        scattered: bool = False,
        ends: Mapping[int, tuple[int, int]] | None = None,
    ) -> None:
        """`staged` is the graph's staged subject, if the caller has it; `scattered` as in
        `UniformStages`; `ends` are, by the number of stages, the layers of the first and of the
        last one if these differ from the others: 0 for one with only the embedding or the head.
        Raises `Infeasible` as `mesh_of`."""
        self._scattered = scattered
        self._ends = ends or {}
        self._hardware = hardware
        self._gpus = gpus
        self._mesh = mesh_of(hardware, gpus)
        self._staged = staged or StagedSubject.of(graph)
        self._units = Units.of(self._staged.subject.patterns)

    @property
    def batch(self) -> int | None:
        """The samples of a step; None if nothing is a sample."""
        return self._staged.subject.graph.batch_size

    @cached_property
    def layers(self) -> tuple[int, ...]:
        """The first unit of each layer, ascending; layers that cannot be separated share a unit."""
        coarsened = self._staged.subject.coarsened
        blocks = Blocks.of_coarsened(coarsened)
        first: dict[str, int] = {}
        for group, unit in zip(coarsened.groups, self._units.of_group, strict=True):
            label = blocks.of_group(group.members)
            if label is not None:
                first[label] = min(unit, first.get(label, unit))
        return tuple(sorted(first.values()))

    @cached_property
    def _behind(self) -> int:
        """The first unit behind the last layer, or the number of units."""
        coarsened = self._staged.subject.coarsened
        blocks = Blocks.of_coarsened(coarsened)
        of_blocks = (
            unit
            for group, unit in zip(coarsened.groups, self._units.of_group, strict=True)
            if blocks.of_group(group.members) is not None
        )
        return max(of_blocks, default=len(self._units) - 1) + 1

    def bounds(self, ranks: int, stages_per_rank: int = 1) -> tuple[int, ...]:
        """Returns the units at which stages of equal layers begin, and the number of units.

        Raises `BadInput` if layers or devices cannot be divided like this.
        """
        return self._divided(ranks, stages_per_rank)[0]

    def _divided(self, ranks: int, stages_per_rank: int) -> tuple[tuple[int, ...], StageAxes]:
        """Returns `bounds`, and the axes that number the ranks; raises as `bounds`."""
        layers, axes = self.layers, self._axes(ranks)
        of = counted(ranks, "stage")
        if stages_per_rank > 1:
            of = f"{ranks} times {counted(stages_per_rank, 'stage')}"
        if ranks < 2 or self._gpus % ranks or axes is None:
            raise BadInput(
                f"{counted(ranks, 'stage')} do not divide {self._gpus} GPUs and their nodes evenly",
                field="stages",
                expected=" or ".join(map(str, self.counts())) or "no pipeline is possible",
            )
        starts = self._starts(ranks * stages_per_rank)
        if starts is None:
            known = self.counts() if stages_per_rank == 1 else self.stages_per_rank(ranks)
            if ends := self._ends.get(ranks * stages_per_rank):
                of += f", the first with {ends[0]} and the last with {ends[1]}"
            raise BadInput(
                f"{len(layers)} layers do not divide into {of}",
                field="stages" if stages_per_rank == 1 else "stages per rank",
                expected=" or ".join(map(str, known)) or "no pipeline is possible",
            )
        return (0, *starts, len(self._units)), axes

    def with_ends(self, ends: Mapping[int, tuple[int, int]]) -> UniformModel:
        """Returns the same model with other numbers of layers in first and last stages."""
        other = copy(self)
        other._ends = ends
        return other

    def _starts(self, stages: int) -> list[int] | None:
        """Returns the units at which all stages but the first begin, or None if layers cannot be
        separated there."""
        layers = self.layers
        ends = self._ends.get(stages)
        first, last = ends or (0, 0)
        between, inner = len(layers) - first - last, stages - (2 if ends else 0)
        if not layers or between < inner or (between % inner if inner > 0 else between or not ends):
            return None
        each = between // inner if inner else len(layers)
        cuts = range(first or each, len(layers), each)
        if ends:
            cuts = range(first, len(layers) - last + 1, each)
        starts = [(*layers, self._behind)[n] for n in cuts]
        parted = all(one < other for one, other in pairwise((0, *starts, len(self._units))))
        return starts if parted else None

    def counts(self) -> list[int]:
        """Returns the numbers of ranks, from 2 on, that divide layers and devices."""
        return [
            ranks
            for ranks in range(2, min(len(self.layers), self._gpus) + 1)
            if self._gpus % ranks == 0
            and self._axes(ranks) is not None
            and self._starts(ranks) is not None
        ]

    def stages_per_rank(self, ranks: int) -> list[int]:
        """Returns the possible numbers of stages per rank, from 1."""
        most = len(self.layers) // max(ranks, 1)
        return [v for v in range(1, most + 1) if self._starts(ranks * v) is not None]

    def _axes(self, ranks: int) -> StageAxes | None:
        return StageAxes.of(self._hardware, self._mesh, ranks)

    def recut(self, stages: UniformStages, stages_per_rank: int) -> UniformStages:
        """Returns the same costs with another number of stages per rank; raises as `bounds`."""
        bounds = self.bounds(stages.ranks, stages_per_rank)
        return replace(stages, bounds=bounds, stages_per_rank=stages_per_rank)

    def costed(
        self,
        ranks: int,
        micro_batches: int,
        options: Options,
        progress: Progress,
        stages_per_rank: int = 1,
        mesh: Mesh | None = None,
    ) -> UniformStages:
        """Returns the model in stages of equal layers on this many ranks, with costs; `mesh` is
        that of one rank's devices if it has its own axes.

        Raises `BadInput` as `bounds`, and for fewer than `FEWEST` micro-batches or a number that
        does not divide the batch.
        """
        bounds, axes = self._divided(ranks, stages_per_rank)
        if micro_batches < FEWEST or (self.batch is not None and self.batch % micro_batches):
            raise BadInput(
                f"{micro_batches} micro-batches of {self.batch} samples",
                field="micro-batches",
                expected=f"a divisor of the batch from {FEWEST} on in a pipeline",
            )
        mesh = mesh or mesh_of(self._hardware, self._gpus // ranks)
        subject = self._staged.subject
        draft = Draft.of(subject, self._hardware, mesh, options, progress, micro_batches)
        search = draft.joined(progress)
        return UniformStages(
            search,
            self._mesh,
            self._units,
            self._staged.tied,
            axes,
            bounds,
            cache(lambda: StageReplayer(search.own_replayer, self._units.of_group)),
            stages_per_rank,
            self._scattered,
        )
