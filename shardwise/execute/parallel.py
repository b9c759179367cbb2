"""`parallelize`: a module and a plan become an ordinary module that trains in parallel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch.utils import _pytree as pytree

from shardwise.advise.layout import REPLICATE
from shardwise.errors import BadInput
from shardwise.execute.accumulate import accumulate
from shardwise.execute.bridge import bridge
from shardwise.execute.builder import Builder, Built, Parameters
from shardwise.execute.captured import Captured, capture_for, smaller
from shardwise.execute.collectives import run
from shardwise.execute.exchange import Exchange
from shardwise.execute.loading import Arrival, Loading
from shardwise.execute.local import local_operator
from shardwise.execute.parameters import ParameterSpec, ParameterStore
from shardwise.execute.placement import CONSTANT, Placed, Placement
from shardwise.execute.precision import with_casts
from shardwise.execute.program import Program, Watch
from shardwise.execute.rank_mesh import RankMesh
from shardwise.execute.saved import SavedTensors
from shardwise.execute.summary import Summary, summarise
from shardwise.graph.graph import Graph


def parallelize(
    module: torch.nn.Module,
    example_inputs: Any,
    plan: Mapping[str, Any],
    *,
    graph: Graph | None = None,
    device: torch.device | str | None = None,
) -> ParallelModule:
    """`module` as the plan (`shardwise.plan/1`) runs it on the ranks of torch.distributed.

    `module` returns its loss; its values are those that training starts from, so seed all ranks
    alike or load a checkpoint. `example_inputs` are a whole batch: positional (a tuple) or keyword
    (a dict) arguments of which only shapes and dtypes matter. The result is called with the whole
    batch or with this rank's share of it, and returns what `module` would for the whole batch.
    `graph` is the plan's graph; it helps where that was captured under other names (`hf:`). The
    tensors are on `device`, that of the module's parameters unless given.

    Raises `BadInput` when the plan is for another graph or another number of ranks, `CaptureError`
    when the module cannot be captured. torch.distributed must be initialised.
    """
    if not dist.is_initialized():
        raise BadInput(
            "torch.distributed is not initialised", expected="torch.distributed.init_process_group"
        )
    mesh = mesh_of(plan, dist.get_rank())
    return ParallelModule(capture_for(module, example_inputs, plan, graph), plan, mesh, device)


def mesh_of(plan: Mapping[str, Any], rank: int) -> RankMesh:
    """The mesh of a plan as `rank` sees it; raises `BadInput` for another number of ranks."""
    axes = plan["mesh"]["axes"]
    world = dist.get_world_size()
    if world != int(plan["gpus"]):
        raise BadInput(
            f"the plan is for {plan['gpus']} devices, there are {world} ranks",
            field="gpus",
            expected=f"{plan['gpus']} ranks",
        )
    return RankMesh([a["name"] for a in axes], [int(a["size"]) for a in axes], rank)


class ParallelModule(torch.nn.Module):  # type: ignore[misc]
    """A module that computes the loss of the whole batch on all ranks together.

    Its parameters are this rank's parts, under their own names; an ordinary optimizer updates
    them. Buffers are whole on every rank; of running statistics each rank updates its part
    (`sync_buffers`). `program` says what a step does.
    """

    def __init__(
        self,
        captured: Captured,
        plan: Mapping[str, Any],
        mesh: RankMesh,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self._parts = int(plan.get("micro_batches", 1))
        self._captured = smaller(captured, self._parts)
        self._mesh = mesh
        self._device = torch.device(device) if device is not None else _device(captured)
        self._runs = 0
        saved = SavedTensors()
        exchange = Exchange(mesh, self._device)
        placement = Placement(self._captured.graph, plan, mesh)
        kept = Parameters(placement)
        built = self._build(placement, kept, exchange)
        self._store = ParameterStore(
            _specs(placement, kept, captured), mesh, micro_batches=self._parts, device=self._device
        )
        self._store.saved = saved
        self._store.load(
            {name: captured.value(name).detach().to(self._device) for name in kept.all()}
        )
        self._whole_buffers = {
            name: captured.value(name).detach().to(self._device, copy=True)
            for name in dict.fromkeys(name for name, _ in built.buffers.values())
        }
        self._register()
        arrivals = {
            name: Arrival(self._captured.graph.tensors[name], placement.arrives(name))
            for name in built.arguments
        }
        self._loading = Loading(
            arrivals, self._captured.converted.inputs, mesh, self._parts, self._device
        )

        def step(number: int) -> None:
            exchange.step = number

        self._program = Program(
            built,
            mesh,
            self._store.user,
            self._whole_buffers.__getitem__,
            saved,
            step,
            hooks=any(group.zero == 3 for group in placement.groups),
        )
        self.program: Summary = summarise(built, plan)

    def _build(self, placement: Placement, kept: Parameters, exchange: Exchange) -> Built:
        captured, planned = placement.captured, placement.graph

        def local(placed: Placed) -> Any:
            op, graph = placed.operator, captured if placed.group == CONSTANT else planned
            made = local_operator(
                op, graph.tensors, placed.semantics, placed.split, placement.mesh, exchange
            )
            if graph is captured:
                return made
            return replace(made, run=with_casts(made.run, op, captured, planned))

        outputs = [n for n in self._captured.converted.outputs if n in placement.made_in]
        return Builder(placement, local, kept).build([name for name in outputs if name])

    def _register(self) -> None:
        """Parameters and buffers under the names that they have in the graph."""
        for name, parameter in self._store.parameters().items():
            _attach(self, name, parameter)
        for name, buffer in self._whole_buffers.items():
            if name in self._captured.converted.paths:
                _attach(self, name, buffer)

    @property
    def store(self) -> ParameterStore:
        """This rank's parameters, as the plan keeps them."""
        return self._store

    @property
    def mesh(self) -> RankMesh:
        """The mesh, and this rank's place on it."""
        return self._mesh

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module returns for the whole batch, on every rank.

        Raises `BadInput` for arguments unlike the example inputs and in evaluation mode.
        """
        return self.run(args, kwargs)

    def share(self, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """This rank's share of a whole batch, on its device: what `forward` wants at the least.

        Positional and keyword arguments, in memory of their own, as data parallelism would give
        them. Raises `BadInput` for arguments unlike the example inputs.
        """
        leaves, form = pytree.tree_flatten((args, kwargs))
        made: tuple[tuple[Any, ...], dict[str, Any]] = pytree.tree_unflatten(
            self._loading.share(leaves), form
        )
        return made

    def run(self, args: Any, kwargs: Any, watch: Watch | None = None) -> Any:
        """`forward`; `watch` sees every instruction."""
        if not self.training:
            raise BadInput(
                "the program is that of a training step",
                expected="train mode; evaluate the original module with gathered parameters",
            )
        batches = self._loading.micro_batches(pytree.tree_leaves((args, kwargs)))
        if self._parts == 1:
            return self._returned(self._one(batches[0], 0, watch))
        name = self._only_output()

        def one(part: int) -> torch.Tensor:
            return self._one(batches[part], part, watch)[name]

        if not torch.is_grad_enabled():
            loss = torch.stack([one(part) for part in range(self._parts)]).mean()
        else:
            loss = accumulate(self._parts, one, list(self._store.parameters().values()))
        return self._returned({name: loss})

    def _one(
        self, batch: Mapping[str, torch.Tensor], part: int, watch: Watch | None
    ) -> dict[str, torch.Tensor]:
        self._store.begin(part)
        number = self._runs
        self._runs += 1
        return self._program.run(batch, number, watch)

    def _only_output(self) -> str:
        names = [name for name in self._captured.converted.outputs if name is not None]
        if len(names) != 1:
            raise BadInput(
                f"the module returns {len(names)} tensors",
                field="micro_batches",
                expected="its loss alone, or a plan with one micro-batch",
            )
        return names[0]

    def _returned(self, results: Mapping[str, torch.Tensor]) -> Any:
        values = [None if n is None else results[n] for n in self._captured.converted.outputs]
        return pytree.tree_unflatten(values, self._captured.returns)

    def sync_buffers(self) -> None:
        """Make running statistics whole on every rank; collective, before they are saved."""
        for name, layout in self._program.written().items():
            whole = self._whole_buffers[name]
            part = whole[self._mesh.local_slices(whole.shape, layout)]
            path = bridge(layout, (REPLICATE,) * len(layout))
            whole.copy_(run(part, path, self._mesh, whole.shape))


def _specs(placement: Placement, kept: Parameters, captured: Captured) -> list[ParameterSpec]:
    """Frozen parameters get no gradient, as in the module."""
    found = []
    for name, pair in kept.all().items():
        group = placement.groups[kept.group[name]]
        tensor = placement.graph.tensors[name]
        found.append(
            ParameterSpec(
                name=name,
                shape=tensor.shape,
                dtype=tensor.dtype,
                layout=pair.forward,
                gradient=pair.gradient if captured.value(name).requires_grad else None,
                zero=group.zero,
                zero_axes=group.zero_axes,
            )
        )
    return found


def _device(captured: Captured) -> torch.device:
    for parameter in captured.model.module.parameters():
        return parameter.device
    return torch.device("cpu")


def _attach(root: torch.nn.Module, path: str, tensor: torch.Tensor) -> None:
    """Register a parameter or buffer under its dotted name."""
    *scopes, last = path.split(".")
    owner = root
    for scope in scopes:
        if scope not in owner._modules:
            owner.add_module(scope, torch.nn.Module())
        owner = owner._modules[scope]
    if isinstance(tensor, torch.nn.Parameter):
        owner.register_parameter(last, tensor)
    else:
        owner.register_buffer(last, tensor)
