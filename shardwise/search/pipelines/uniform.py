"""Uniform pipelines: stages of equal layers, all with one strategy of the whole model.

Trainers run these. Layers are blocks (items of lists of modules, `sharding/segments.py`); what
comes before the first is in the first stage, what comes after a block in the stage of the block.
The strategy is one of the whole model on the devices of a stage, costed and replayed there as
those that are searched (`staged.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shardwise.cost.options import Options, Progress
from shardwise.errors import BadInput
from shardwise.graph import Graph
from shardwise.hardware import Hardware, Mesh
from shardwise.replay.stages import FEWEST, StageReplayer
from shardwise.search.pipelines.hops import StageAxes
from shardwise.search.pipelines.pipeline import Pipeline
from shardwise.search.pipelines.subject import StagedSubject, Tied
from shardwise.search.pipelines.units import Units
from shardwise.search.search import Draft, Search, mesh_of
from shardwise.sharding.segments import Blocks

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

    @cached_property
    def _replayer(self) -> StageReplayer:
        return StageReplayer(self.search.own_replayer, self.units.of_group)

    def pipeline(self, schedule: str, choices: Choices, edge_choices: Choices) -> Pipeline:
        """Returns the pipeline of a strategy, (groups,) and (edges,) of `search.problem`, whether
        or not it fits."""
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
            self._replayer.replay(choices, edge_choices, self.bounds),
        )


class UniformModel:
    """A graph on a number of devices, to be cut into stages of equal layers."""

    def __init__(self, graph: Graph, hardware: Hardware, gpus: int) -> None:
        """Raises `Infeasible` as `mesh_of`."""
        self._hardware = hardware
        self._gpus = gpus
        self._mesh = mesh_of(hardware, gpus)
        self._staged = StagedSubject.of(graph)
        self._units = Units.of(self._staged.subject.patterns)

    @property
    def batch(self) -> int | None:
        """The samples of a step, None where nothing is a sample."""
        return self._staged.subject.graph.batch_size

    @cached_property
    def layers(self) -> tuple[int, ...]:
        """The first unit of each layer, ascending; several have one unit where they cannot be
        parted."""
        coarsened = self._staged.subject.coarsened
        blocks = Blocks.of_coarsened(coarsened)
        first: dict[str, int] = {}
        for group, unit in zip(coarsened.groups, self._units.of_group, strict=True):
            label = blocks.of_group(group.members)
            if label is not None:
                first[label] = min(unit, first.get(label, unit))
        return tuple(sorted(first.values()))

    def bounds(self, stages: int) -> tuple[int, ...]:
        """Returns the units at which stages of equal layers begin, and the number of units.

        Raises `BadInput` where layers or devices are not divisible so.
        """
        of, layers = f"{stages} stages", self.layers
        if stages < 2 or self._gpus % stages or self._axes(stages) is None:
            raise BadInput(
                f"{of} do not divide {self._gpus} GPUs and their nodes evenly",
                field="stages",
                expected=" or ".join(map(str, self.counts())) or "no pipeline is possible",
            )
        if not layers or len(layers) % stages:
            raise BadInput(
                f"{len(layers)} layers do not divide into {of}",
                field="stages",
                expected=" or ".join(map(str, self.counts())) or "no pipeline is possible",
            )
        each = len(layers) // stages
        starts = [layers[number] for number in range(each, len(layers), each)]
        bounds = (0, *starts, len(self._units))
        if any(layers[n - 1] == layers[n] for n in range(each, len(layers), each)):
            raise BadInput(f"layers cannot be parted into {of}", field="stages")
        return bounds

    def counts(self) -> list[int]:
        """Returns the numbers of stages, from 2 on, that divide layers and devices."""
        known, layers = [], self.layers
        for stages in range(2, min(len(layers), self._gpus) + 1):
            each = len(layers) // stages
            if (
                self._gpus % stages == 0
                and len(layers) % stages == 0
                and self._axes(stages) is not None
                and all(layers[n - 1] < layers[n] for n in range(each, len(layers), each))
            ):
                known.append(stages)
        return known

    def _axes(self, stages: int) -> StageAxes | None:
        return StageAxes.of(self._hardware, self._mesh, stages)

    def costed(
        self, stages: int, micro_batches: int, options: Options, progress: Progress
    ) -> UniformStages:
        """Returns the model in this many stages of equal layers, costed.

        Raises `BadInput` as `bounds`, and for fewer than `FEWEST` micro-batches or a number that
        does not divide the batch.
        """
        bounds = self.bounds(stages)
        if micro_batches < FEWEST or (self.batch is not None and self.batch % micro_batches):
            raise BadInput(
                f"{micro_batches} micro-batches of {self.batch} samples",
                field="micro-batches",
                expected=f"a divisor of the batch from {FEWEST} on in a pipeline",
            )
        mesh = mesh_of(self._hardware, self._gpus // stages)
        subject = self._staged.subject
        draft = Draft.of(subject, self._hardware, mesh, options, progress, micro_batches)
        axes = self._axes(stages)
        assert axes is not None
        return UniformStages(
            draft.joined(progress), self._mesh, self._units, self._staged.tied, axes, bounds
        )
