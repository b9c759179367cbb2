"""A module that computes as a pipeline: each rank builds one stage, and runs its list of a step."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from shardwise.documents import Pipeline
from shardwise.errors import BadInput, ShardwiseError
from shardwise.execute.absent import differentiated_by
from shardwise.execute.accumulate import with_backward
from shardwise.execute.captured import Captured, capture_for, smaller
from shardwise.execute.loading import Argument
from shardwise.execute.parallel import ParallelModule
from shardwise.execute.pipeline.boundary import Boundary, boundaries, check_edges
from shardwise.execute.pipeline.document import (
    StagedStrategy,
    Stages,
    require_sound,
    stages_of,
    strategy_of,
)
from shardwise.execute.pipeline.hops import Hops
from shardwise.execute.pipeline.lost import naming_the_lost
from shardwise.execute.pipeline.runner import Runner
from shardwise.execute.pipeline.shared import shared_parameters, siblings_of, sum_gradients
from shardwise.execute.pipeline.stage_mesh import StageMesh
from shardwise.execute.placement import Placement
from shardwise.execute.precision import planned_graph
from shardwise.execute.program import Watch
from shardwise.graph.graph import Graph
from shardwise.pipeline.lists import forward_only, lists_of, require_end
from shardwise.pipeline.schedules import schedule

NO_PARAMETERS = "no_parameters"
"""The name of the empty parameter of a stage that has none. It is in no checkpoint."""


def pipelined(
    module: torch.nn.Module,
    example_inputs: Any,
    document: Pipeline,
    graph: Graph | None,
    device: torch.device | str | None,
    compile: bool | None,
) -> PipelineModule:
    """Returns `module` as a pipeline runs it (`shardwise.parallelize`)."""
    if compile:
        raise BadInput("pipelines are not compiled", field="compile", expected="False")
    require_sound(document)
    captured = capture_for(module, example_inputs, strategy_of(document), graph)
    return PipelineModule(captured, document, device)


class PipelineModule(ParallelModule):
    """A module that computes the loss of the whole batch on the stages of a pipeline together.

    Its parameters and buffers are this rank's parts of those of its stage, under their own names.
    One call runs the schedule over all micro-batches, backward included, and returns the loss of
    the whole batch on every rank; `loss.backward()` hands out the gradients. `plan` is the
    `shardwise.pipeline/1` document, `stage` the number of this rank's stage, `waited_s` the seconds
    for which it has waited for other stages.
    """

    def __init__(
        self, captured: Captured, document: Pipeline, device: torch.device | str | None = None
    ) -> None:
        """Every rank gets the same document.

        Raises `BadInput` for a document that is not sound, or not the one that other ranks have.
        """
        mesh = stage_mesh_of(document)
        _require_one_document(document)
        strategy = strategy_of(document)
        problem: ShardwiseError | None = None
        try:
            self._prepare(captured, document, strategy, mesh, device)
        except ShardwiseError as error:
            problem = error
        _raise_together(problem)
        mesh.create_groups()
        self._share(self._stages, mesh)
        self._require_one_step(document)

    def _prepare(
        self,
        captured: Captured,
        document: Pipeline,
        strategy: StagedStrategy,
        mesh: StageMesh,
        device: torch.device | str | None,
    ) -> None:
        small = smaller(captured, document.micro_batches)
        stages = stages_of(document, small.graph)
        number = mesh.first // mesh.world_size
        cuts = _cuts(captured, small, strategy, stages, mesh)
        super().__init__(captured, strategy, mesh, device, stage=stages.stages[number])
        self._register_nothing()
        self.plan = document
        self.stage = number
        self._stages = stages
        self._stage_mesh = mesh
        mesh.need(range(len(mesh.sizes)))
        for over in stages.shared.values():
            if number in over:
                mesh.needed.add(siblings_of(over, mesh))
        self._loss = _loss_of(small, strategy)
        self._lists = _lists(document, cuts)
        self._over = {cut: cuts[cut] for cut in (number - 1, number) if 0 <= cut < len(cuts)}
        counterparts = [
            other * mesh.world_size + mesh.rank for other in range(len(document.stages))
        ]
        self._hops = Hops(self._over, counterparts, self.device)
        self._batches: Sequence[Mapping[Argument, torch.Tensor]] = ()
        self._runner = Runner(
            stages.stages[number],
            self._over.get(number - 1, ()),
            self._over.get(number, ()),
            self._hops,
            self._loss.name if number == len(document.stages) - 1 else None,
            self._forward_of,
            self._store.begin,
        )

    def _register_nothing(self) -> None:
        """Gives a stage without parameters an empty one: torch's optimizers refuse none, and its
        gradient scaler refuses an optimizer without gradients."""
        if next(self.parameters(), None) is None:
            self.register_parameter(
                NO_PARAMETERS, torch.nn.Parameter(torch.empty(0, device=self.device))
            )

    def _share(self, stages: Stages, mesh: StageMesh) -> None:
        """Finds what parameters this stage has in common with others; collective."""
        self._shared = shared_parameters(stages.shared, self.stage, self._store, mesh)
        self._store.counted_elsewhere = frozenset(
            name for name, over in stages.shared.items() if self.stage in over[1:]
        )

    @property
    def waited_s(self) -> float:
        """The seconds for which this rank has waited for other stages."""
        return self._hops.waited_s

    def _require_one_step(self, document: Pipeline) -> None:
        """Compares what all ranks will send and receive, before any of them does; collective."""
        mine = {cut: [*map(_described, over)] for cut, over in self._over.items()}
        of_all: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(of_all, mine)
        for rank in range(len(of_all) - self._stage_mesh.world_size):
            cut, other = rank // self._stage_mesh.world_size, rank + self._stage_mesh.world_size
            if of_all[rank][cut] != of_all[other][cut]:
                here, there = of_all[rank][cut], of_all[other][cut]
                pairs = zip(here, there, strict=False)
                first = next((pair for pair in pairs if pair[0] != pair[1]), (here, there))
                raise BadInput(
                    f"rank {rank} sends {first[0]} where rank {other} receives {first[1]}",
                    field="stages",
                    expected="the same tensors in the same layouts on both sides of a cut",
                )
        for lists in self._lists:
            require_end(lists)

    def _run(
        self, batches: Sequence[Mapping[Argument, torch.Tensor]], watch: Watch | None = None
    ) -> Any:
        self._batches = batches
        try:
            with naming_the_lost(lambda rank: rank // self._stage_mesh.world_size):
                if torch.is_grad_enabled():
                    parameters = [*self._store.parameters().values()] or [*self.parameters()]
                    loss = with_backward(self._train, parameters)
                else:
                    loss = self._whole_loss(
                        self._runner.run(self._lists[1][self.stage], self._parts)
                    )
                    self._runs += self._parts
        finally:
            self._batches = ()
        return self._returned({self._loss.name: loss})

    def _train(self) -> torch.Tensor:
        total = self._runner.run(self._lists[0][self.stage], self._parts)
        self._runs += self._parts
        sum_gradients(self._shared, self._store)
        nothing = self._parameters.get(NO_PARAMETERS)
        if nothing is not None:
            nothing.grad = torch.empty_like(nothing)
        return self._whole_loss(total)

    def _forward_of(
        self, micro_batch: int, incoming: Mapping[str, torch.Tensor]
    ) -> Mapping[str, torch.Tensor]:
        # Random operators draw by this number, whatever the order of micro-batches.
        number = self._runs + micro_batch
        return self._program.run(self._batches[micro_batch], number, None, incoming)

    def _whole_loss(self, total: torch.Tensor | None) -> torch.Tensor:
        """Returns the loss on every rank: that of the last stage's first rank."""
        if total is None:
            total = torch.empty(self._loss.shape, dtype=self._loss.dtype, device=self.device)
        if dist.get_world_size() > 1:
            last = (len(self.plan.stages) - 1) * self._stage_mesh.world_size
            began = perf_counter()
            dist.broadcast(total, last, group=dist.group.WORLD)
            self._hops.waited_s += perf_counter() - began
        return total


def stage_mesh_of(document: Pipeline) -> StageMesh:
    """Returns the mesh of this rank's stage; raises `BadInput` for another number of ranks, and
    like `require_sound`."""
    require_sound(document)
    world = dist.get_world_size()
    if world != document.gpus:
        raise BadInput(
            f"the pipeline is for {document.gpus} devices, there are {world} ranks",
            field="gpus",
            expected=f"{document.gpus} ranks",
        )
    axes = document.stage_mesh.axes
    devices = document.stages[0].devices
    number, rank = divmod(dist.get_rank(), devices)
    return StageMesh(
        [axis.name for axis in axes], [axis.size for axis in axes], rank, number * devices
    )


def _cuts(
    captured: Captured,
    small: Captured,
    strategy: StagedStrategy,
    stages: Stages,
    mesh: StageMesh,
) -> list[tuple[Boundary, ...]]:
    """Returns what goes over each cut, after a check of all edges, also those of other stages."""
    placement = Placement(small.graph, strategy, mesh)
    check_edges(placement, strategy.edges)
    names = [t.name for t in placement.graph.tensors.values() if t.role == "parameter"]
    trains = {name: captured.value(name).requires_grad for name in names}
    differentiated = differentiated_by(placement.graph, trains)
    return [boundaries(over, placement, differentiated) for over in stages.cuts]


def _lists(document: Pipeline, cuts: Sequence[Sequence[Boundary]]) -> tuple[Any, Any]:
    """Returns the lists of all stages for a training step, and for one without gradients."""
    made = schedule(
        document.schedule, ranks=len(document.stages), micro_batches=document.micro_batches
    )
    carries = [bool(over) for over in cuts]
    returns = [any(boundary.differentiable for boundary in over) for over in cuts]
    forwards = lists_of(forward_only(made), carries, [False] * len(cuts))
    return lists_of(made, carries, returns), forwards


def _loss_of(small: Captured, strategy: StagedStrategy) -> Boundary:
    """Returns what the module returns; raises `BadInput` unless that is one number."""
    tensors = planned_graph(small.graph, strategy).tensors
    names = [name for name in small.converted.outputs if name is not None]
    shapes = [tensors[name].shape for name in names]
    if len(names) != 1 or any(n != 1 for n in shapes[0]):
        raise BadInput(
            f"the module returns tensors of the shapes {[[*shape] for shape in shapes]}",
            field="stages",
            expected="its loss alone",
        )
    dtype = getattr(torch, tensors[names[0]].dtype)
    return Boundary(names[0], (), shapes[0], dtype, True)


def _described(boundary: Boundary) -> str:
    dtype = str(boundary.dtype).removeprefix("torch.")
    back = " and back" if boundary.differentiable else ""
    return f"{boundary.name} {dtype} {[*boundary.shape]}{back}"


def _require_one_document(document: Pipeline) -> None:
    """Raises `BadInput` on all ranks where they have read different documents; collective."""
    mine = hashlib.sha256(msgspec.json.encode(document)).hexdigest()
    of_all: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(of_all, mine)
    for rank, digest in enumerate(of_all):
        if digest != of_all[0]:
            raise BadInput(
                f"rank {rank} has another document than rank 0",
                field="pipeline",
                expected="the same on all ranks",
            )


def _raise_together(problem: ShardwiseError | None) -> None:
    """Raises on all ranks what one of them has met, so that none waits for it; collective."""
    of_all: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(of_all, problem and str(problem))
    if problem is not None:
        raise problem
    for rank, text in enumerate(of_all):
        if text is not None:
            raise ShardwiseError(f"rank {rank}: {text}")
