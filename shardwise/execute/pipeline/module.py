"""A module that computes as a pipeline: each rank builds its stages and runs its list of a step."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from shardwise.documents import Plan
from shardwise.errors import BadInput, ShardwiseError
from shardwise.execute.absent import differentiated_by
from shardwise.execute.accumulate import with_backward
from shardwise.execute.captured import Captured, smaller
from shardwise.execute.loading import Argument
from shardwise.execute.local.waiting import Deferral, Waiting, run_waiting
from shardwise.execute.parallel import ParallelModule, require_ranks
from shardwise.execute.passes import first_pass
from shardwise.execute.pipeline.boundary import Boundary, boundaries, check_edges
from shardwise.execute.pipeline.document import (
    Stages,
    require_sound,
    schedule_of,
    stages_of,
    strategy_of,
)
from shardwise.execute.pipeline.hops import Hops
from shardwise.execute.pipeline.lost import naming_the_lost
from shardwise.execute.pipeline.runner import Chunk, Runner
from shardwise.execute.pipeline.shared import (
    owners_of,
    shared_parameters,
    siblings_of,
    sum_gradients,
)
from shardwise.execute.pipeline.stage_mesh import StageMesh
from shardwise.execute.placement import Placement
from shardwise.execute.precision import planned_graph
from shardwise.execute.program import Watch
from shardwise.execute.stage import Stage
from shardwise.pipeline.actions import Kind, Schedule
from shardwise.pipeline.lists import forward_only, lists_of, require_end

NO_PARAMETERS = "no_parameters"
"""The name of the empty parameter of a stage that has none. It is in no checkpoint."""


class PipelineModule(ParallelModule):
    """A module that computes the loss of the whole batch on the stages of a pipeline together.

    Its parameters and buffers are this rank's parts of those of its stages, under their own names.
    One call runs the schedule over all micro-batches, backward included, and returns the loss of
    the whole batch on every rank; `loss.backward()` hands out the gradients. `plan` is a plan with
    a schedule of its stages, `stages` the numbers of this rank's stages, `waited_s` the
    seconds for which it has waited for other ranks' stages.
    """

    def __init__(
        self, captured: Captured, document: Plan, device: torch.device | str | None = None
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
        self._share(mesh)
        self._require_one_step()

    def _prepare(
        self,
        captured: Captured,
        document: Plan,
        strategy: Plan,
        mesh: StageMesh,
        device: torch.device | str | None,
    ) -> None:
        small = smaller(captured, document.micro_batches)
        stages = stages_of(document, small.graph)
        made = schedule_of(document)
        self._ranks = made.placement
        self._rank = mesh.first // mesh.world_size
        self.stages = self._ranks.stages_of(self._rank)
        cuts = _cuts(captured, small, strategy, stages, mesh)
        own = [stages.stages[number] for number in self.stages]
        split = any(a.kind is Kind.WEIGHTS for actions in made.ranks for a in actions)
        deferral = Deferral() if split else None
        super().__init__(
            captured, strategy, mesh, device, compile=False, stages=own, deferral=deferral
        )
        self._register_nothing()
        self.plan = document
        self._stage_mesh = mesh
        mesh.need(range(len(mesh.sizes)))
        self._owners = owners_of(stages.shared, self._ranks)
        for ranks in self._owners.values():
            if self._rank in ranks:
                mesh.needed.add(siblings_of(ranks, mesh))
        self._loss = _loss_of(small, strategy)
        self._lists = _lists(made, cuts)
        self._cuts = cuts
        counterparts = [
            self._ranks.rank_of(other) * mesh.world_size + mesh.rank
            for other in range(len(document.stages))
        ]
        self._hops = Hops(cuts, counterparts, self.device)
        self._batches: Sequence[Mapping[Argument, torch.Tensor]] = ()
        chunks = [self._chunk(place, stage) for place, stage in enumerate(own)]
        self._runner = Runner(chunks, self._hops, deferral)

    def _chunk(self, place: int, stage: Stage) -> Chunk:
        """Returns the stage at a place among this rank's."""
        number, cuts = stage.number, self._cuts
        return Chunk(
            stage,
            cuts[number - 1] if number else (),
            cuts[number] if number < len(cuts) else (),
            self._loss.name if number == len(cuts) else None,
            partial(self._forward_of, place),
            partial(self._store.begin, which=first_pass(place, self._deferral is not None)),
            None if self._deferral is None else partial(self._weights_of, place),
        )

    def _register_nothing(self) -> None:
        """Gives a stage without parameters an empty one: torch's optimizers refuse none, and its
        gradient scaler refuses an optimizer without gradients."""
        if next(self.parameters(), None) is None:
            self.register_parameter(
                NO_PARAMETERS, torch.nn.Parameter(torch.empty(0, device=self.device))
            )

    def _share(self, mesh: StageMesh) -> None:
        """Finds what parameters this rank has in common with others; collective."""
        self._shared = shared_parameters(self._owners, self._rank, self._store, mesh)
        self._store.counted_elsewhere = frozenset(
            name for name, ranks in self._owners.items() if self._rank in ranks[1:]
        )

    @property
    def waited_s(self) -> float:
        """The seconds for which this rank has waited for the stages of others."""
        return self._hops.waited_s

    def _require_one_step(self) -> None:
        """Compares what all ranks will send and receive, before any of them does; collective."""
        mine = [[*map(_described, over)] for over in self._cuts]
        of_all: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(of_all, mine)
        size = self._stage_mesh.world_size
        for cut in range(len(mine)):
            low, high = (self._ranks.rank_of(stage) * size for stage in (cut, cut + 1))
            for rank, other in zip(range(low, low + size), range(high, high + size), strict=True):
                here, there = of_all[rank][cut], of_all[other][cut]
                if here == there:
                    continue
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
            with naming_the_lost(self._called):
                if torch.is_grad_enabled():
                    parameters = [*self._store.parameters().values()] or [*self.parameters()]
                    loss = with_backward(self._train, parameters)
                else:
                    loss = self._whole_loss(
                        self._runner.run(self._lists[1][self._rank], self._parts)
                    )
                    self._runs += self._parts
        finally:
            self._batches = ()
        return self._returned({self._loss.name: loss})

    def _train(self) -> torch.Tensor:
        self._store.begin_step()
        total = self._runner.run(self._lists[0][self._rank], self._parts)
        self._runs += self._parts
        sum_gradients(self._shared, self._store)
        nothing = self._parameters.get(NO_PARAMETERS)
        if nothing is not None:
            nothing.grad = torch.empty_like(nothing)
        return self._whole_loss(total)

    def _weights_of(self, place: int, waiting: list[Waiting], before: int) -> None:
        which = first_pass(place, True) + 1
        self._store.begin(before, which)
        self._store.run_pass(which, partial(run_waiting, waiting))

    def _called(self, rank: int) -> str:
        """Returns what the stages of a rank are called."""
        stages = self._ranks.stages_of(rank // self._stage_mesh.world_size)
        return f"stage{'s' if len(stages) > 1 else ''} {', '.join(map(str, stages))}"

    def _forward_of(
        self, place: int, micro_batch: int, incoming: Mapping[str, torch.Tensor]
    ) -> Mapping[str, torch.Tensor]:
        # Random operators draw by this number, whatever the order of micro-batches.
        number = self._runs + micro_batch
        return self._programs[place].run(self._batches[micro_batch], number, None, incoming)

    def _whole_loss(self, total: torch.Tensor | None) -> torch.Tensor:
        """Returns the loss on every rank: that of the last stage's first rank."""
        if total is None:
            total = torch.empty(self._loss.shape, dtype=self._loss.dtype, device=self.device)
        if dist.get_world_size() > 1:
            last = self._ranks.rank_of(self._ranks.stages - 1) * self._stage_mesh.world_size
            began = perf_counter()
            dist.broadcast(total, last, group=dist.group.WORLD)
            self._hops.waited_s += perf_counter() - began
        return total


def stage_mesh_of(document: Plan) -> StageMesh:
    """Returns the mesh of this rank's stage; raises `BadInput` for another number of ranks, and
    like `require_sound`."""
    require_sound(document)
    require_ranks(document)
    axes = document.stage_mesh.axes
    devices = document.stages[0].devices
    number, rank = divmod(dist.get_rank(), devices)
    return StageMesh(
        [axis.name for axis in axes], [axis.size for axis in axes], rank, number * devices
    )


def _cuts(
    captured: Captured,
    small: Captured,
    strategy: Plan,
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


def _lists(made: Schedule, cuts: Sequence[Sequence[Boundary]]) -> tuple[Any, Any]:
    """Returns the lists of all ranks for a training step, and for one without gradients."""
    carries = [bool(over) for over in cuts]
    returns = [any(boundary.differentiable for boundary in over) for over in cuts]
    forwards = lists_of(forward_only(made), carries, [False] * len(cuts))
    return lists_of(made, carries, returns), forwards


def _loss_of(small: Captured, strategy: Plan) -> Boundary:
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


def _require_one_document(document: Plan) -> None:
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
