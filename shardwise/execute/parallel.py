"""An ordinary module that computes in parallel: one program by a plan on all ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import combinations
from typing import Any

import torch
import torch.distributed as dist
from msgspec import UNSET
from torch.utils import _pytree as pytree

from shardwise.documents import Plan
from shardwise.errors import BadInput
from shardwise.execute import peers
from shardwise.execute.absent import absent, differentiated_by
from shardwise.execute.accumulate import accumulate
from shardwise.execute.agreement import require_one_order
from shardwise.execute.block_mesh import Proportions
from shardwise.execute.builder import Builder, Built, Parameters, part_of
from shardwise.execute.captured import Captured, smaller
from shardwise.execute.collectives import Change, run
from shardwise.execute.communication import Silence
from shardwise.execute.crossing import prepare_groups
from shardwise.execute.exchange import Exchange
from shardwise.execute.instruction import Instruction
from shardwise.execute.loading import Argument, Arrival, Loading
from shardwise.execute.local import local_operator
from shardwise.execute.local.waiting import Deferral
from shardwise.execute.order import BackwardOrder, backward_order
from shardwise.execute.parameters import ParameterSpec, ParameterStore
from shardwise.execute.parameters.reducer import LONE_BYTES, LONE_BYTES_ELSEWHERE
from shardwise.execute.parameters.spec import Placement as ParameterPlacement
from shardwise.execute.passes import passes_of
from shardwise.execute.placement import CONSTANT, Placed, Placement
from shardwise.execute.precision import planned_recipes, with_casts
from shardwise.execute.program import Program, Watch
from shardwise.execute.rank_mesh import Layout, RankMesh, axes_of
from shardwise.execute.redistribute import redistribute_between
from shardwise.execute.region import require_compiler
from shardwise.execute.regions import in_regions, is_compiled, obstacle
from shardwise.execute.saved import SavedTensors
from shardwise.execute.stage import Stage
from shardwise.execute.summary import Summary, summarise
from shardwise.graph.graph import Graph
from shardwise.graph.order import OperatorOrder, require_order, written_ports
from shardwise.measure.slowed import Slowed
from shardwise.sharding.layout import REPLICATE
from shardwise.sharding.operator_layouts import Split


def require_ranks(plan: Plan) -> None:
    """Raises `BadInput` unless the plan is for as many devices as there are ranks."""
    world = dist.get_world_size()
    if world != plan.gpus:
        raise BadInput(
            f"the plan is for {plan.gpus} devices, there are {world} ranks",
            field="gpus",
            expected=f"{plan.gpus} ranks",
        )


def mesh_of(plan: Plan, rank: int) -> RankMesh:
    """Returns a plan's mesh as `rank` sees it; raises `BadInput` for another number of ranks."""
    require_ranks(plan)
    axes = plan.mesh.axes
    return RankMesh([axis.name for axis in axes], [axis.size for axis in axes], rank)


class ParallelModule(torch.nn.Module):  # type: ignore[misc]
    """A module that computes the loss of the whole batch on all ranks together.

    Its parameters are this rank's parts, under their own names; an ordinary optimizer updates them.
    Buffers are whole on every rank; each rank updates its part of running statistics
    (`sync_buffers`). `program` says what a step does, `plan` and `device` what it was made for.
    """

    def __init__(
        self,
        captured: Captured,
        plan: Plan,
        mesh: RankMesh,
        device: torch.device | str | None = None,
        compile: bool | None = None,
        slowed: Slowed | None = None,
        stages: Sequence[Stage] | None = None,
        deferral: Deferral | None = None,
    ) -> None:
        """`slowed` makes this rank's operators slower (`measure/slowed.py`). `stages` are what runs
        on the ranks of `mesh`, each a program of its own, by default everything in one. With a
        `deferral` backward is split."""
        super().__init__()
        self.plan: Any = plan
        self._slowed = slowed
        self._deferral = deferral
        self._parts = plan.micro_batches
        self._captured = smaller(captured, self._parts)
        self._mesh = mesh
        self._device = torch.device(device) if device is not None else _device(captured)
        self.device = self._device
        self._runs = 0
        saved = SavedTensors()
        only = None if stages is None else frozenset[str]().union(*(s.operators for s in stages))
        placement = Placement(self._captured.graph, plan, mesh, only)
        parameters = Parameters(placement)
        exchanges: dict[RankMesh, Exchange] = {}
        order = _order(self._captured.graph, plan)
        builts = [
            self._build(placement, parameters, exchanges, captured, order, stage)
            for stage in stages or (None,)
        ]
        specs = _specs(placement, parameters, captured)
        if placement.proportions.is_mixed or stages is not None:
            written = {n: at for built in builts for n, at in built.written().items()}
            note_groups(placement.proportions, specs, written, captured)
        if placement.proportions.is_mixed:
            peers.create(placement.proportions.needed)
            require_one_order([i.name for built in builts for i in built.instructions])
        self._store = ParameterStore(
            specs,
            mesh,
            micro_batches=self._parts,
            device=self._device,
            passes=passes_of(builts, deferral is not None),
        )
        self._store.saved = saved
        self._store.load(
            {name: captured.value(name).detach().to(self._device) for name in parameters.all()}
        )
        self._whole_buffers = {
            name: captured.value(name).detach().to(self._device, copy=True)
            for name in dict.fromkeys(n for built in builts for n, *_ in built.buffers.values())
        }
        self._register()
        arrivals = [
            Arrival(self._captured.graph.tensors[name], shares, placement.arrives(name))
            for name, shares in dict.fromkeys(at for built in builts for at in built.arguments)
        ]
        self._loading = Loading(
            arrivals,
            self._captured.converted.inputs,
            self._parts,
            self._device,
            is_stage=stages is not None,
        )

        def step(number: int) -> None:
            for exchange in exchanges.values():
                exchange.step = number

        regions, why_not = self._regions(builts[0], plan, compile)
        self._programs = [
            Program(
                built,
                self._store.user,
                self._whole_buffers.__getitem__,
                saved,
                step,
                hooks=any(group.zero == 3 for group in placement.groups),
                compiled=regions,
                backward=_backward(built, order),
                joined=self._store.reducer.joined,
                mesh=mesh,
            )
            for built in builts
        ]
        self.program: Summary = summarise(builts, plan, regions, why_not)
        # From here on only this rank's parts are needed, not the module's own tensors.
        self._captured = self._captured.without_values()

    def _build(
        self,
        placement: Placement,
        parameters: Parameters,
        exchanges: dict[RankMesh, Exchange],
        given: Captured,
        order: OperatorOrder | None,
        stage: Stage | None,
    ) -> Built:
        """Builds a program of this rank; `exchanges` gets those of all meshes, `given` has the
        values of parameters."""
        if stage is not None:
            placement = placement.part(stage.operators)
        captured, planned = placement.captured, placement.graph
        recipes = planned_recipes(captured, self.plan)
        names = [t.name for t in planned.tensors.values() if t.role == "parameter"]
        trains = {name: given.value(name).requires_grad for name in names}
        differentiated = differentiated_by(planned, trains)

        def local(placed: Placed) -> Any:
            op, graph = placed.operator, captured if placed.group == CONSTANT else planned
            mesh = placed.mesh
            if not mesh.present:
                return absent(op, planned, differentiated, self._device)
            exchange = exchanges.setdefault(mesh, Exchange(mesh, self._device))
            local_op = local_operator(
                *(op, graph.tensors, placed.semantics, placed.split, mesh, exchange),
                self._deferral,
                recipes.get(op.name),
            )
            if local_op.communicates:
                note_axes(mesh, placed.split)
            if placed.group == CONSTANT:
                return local_op
            if planned is not captured:
                local_op = replace(local_op, run=with_casts(local_op.run, op, captured, planned))
            if self._slowed is None:
                return local_op
            roles = [planned.tensors[name].role for name in op.inputs]
            rows = [role not in ("parameter", "buffer") for role in roles]
            silently = Silence if local_op.communicates else nullcontext
            run = self._slowed.around(local_op.run, rows, written_ports(op, planned), silently)
            return replace(local_op, run=run)

        outputs = [n for n in self._captured.converted.outputs if n in placement.makes]
        builder = Builder(placement, local, parameters, differentiated)
        return builder.build(
            [name for name in outputs if name],
            None if order is None else order.forward,
            () if stage is None else stage.incoming,
            () if stage is None else stage.outgoing,
        )

    def _regions(
        self, built: Built, plan: Plan, compile: bool | None
    ) -> tuple[list[Instruction] | None, str | None]:
        """Returns the program with regions if it is compiled, else None and what prevents it."""
        wanted, why_not = is_compiled(plan, self._device.type, compile)
        if not wanted:
            return None, why_not
        why_not = obstacle(built.instructions, plan)
        if why_not is not None:
            if compile is None:
                return None, why_not
            raise BadInput(
                f"the plan cannot be compiled: {why_not}",
                field="compile",
                expected="compile=False, or a plan with --recompute never, --zero 0, 1 or 2, and "
                "--pin NAME:reuse=both for each operator whose result is moved again",
            )
        require_compiler(self._device)
        sizes = {
            slot: place.most_elements * place.dtype.itemsize
            for name, slot in built.parameters.items()
            if (place := self._store.placement(name)).carries_gradient and place.repeated
        }
        most_bytes = LONE_BYTES.get(self._device.type, LONE_BYTES_ELSEWHERE)
        return in_regions(built.instructions, built.lasting, sizes, most_bytes), None

    def _register(self) -> None:
        """Registers parameters and buffers under the names they have in the graph."""
        for name, parameter in self._store.parameters().items():
            _attach(self, name, parameter)
        for name, buffer in self._whole_buffers.items():
            if name in self._captured.converted.paths:
                _attach(self, name, buffer)

    @property
    def waited_s(self) -> float:
        """The seconds for which this rank has waited for other stages: 0 without a pipeline."""
        return 0.0

    @property
    def store(self) -> ParameterStore:
        """This rank's parameters, kept as the plan says."""
        return self._store

    @property
    def mesh(self) -> RankMesh:
        """The mesh, and this rank's place on it."""
        return self._mesh

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Returns what the module returns for the whole batch, on every rank.

        Raises `BadInput` for arguments unlike the example inputs and in evaluation mode.
        """
        return self.run(args, kwargs)

    def share(self, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns this rank's share of a whole batch, on its device: all that `forward` needs.

        Returns positional and keyword arguments, in their own memory, as data parallelism would
        pass them. Raises `BadInput` for arguments unlike the example inputs.
        """
        leaves, form = pytree.tree_flatten((args, kwargs))
        shares: tuple[tuple[Any, ...], dict[str, Any]] = pytree.tree_unflatten(
            self._loading.share(leaves), form
        )
        return shares

    def run(self, args: Any, kwargs: Any, watch: Watch | None = None) -> Any:
        """Runs `forward`; `watch` sees every instruction."""
        if not self.training:
            raise BadInput(
                "the program runs training steps only",
                expected="train mode; evaluate the original module with gathered parameters",
            )
        batches = self._loading.micro_batches(pytree.tree_leaves((args, kwargs)))
        return self._run(batches, watch)

    def _run(
        self, batches: Sequence[Mapping[Argument, torch.Tensor]], watch: Watch | None = None
    ) -> Any:
        """Returns what the module returns for all micro-batches."""
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
        self, batch: Mapping[Argument, torch.Tensor], part: int, watch: Watch | None
    ) -> dict[str, torch.Tensor]:
        self._store.begin(part)
        number = self._runs
        self._runs += 1
        return self._programs[0].run(batch, number, watch)

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
        """Makes running statistics whole on every rank, for saving them; collective."""
        written = {n: at for program in self._programs for n, at in program.written().items()}
        for name, (mesh, layout) in written.items():
            whole = self._whole_buffers[name]
            part = part_of(whole, mesh, whole.shape, layout)
            path = _to_whole(mesh, layout, self._mesh)
            whole.copy_(run(part, path, self._mesh, whole.shape))


def _order(graph: Graph, plan: Plan) -> OperatorOrder | None:
    """Returns a plan's order of execution; None for the graph's, backward reversed.

    Raises `BadInput` if the graph cannot be run so.
    """
    if plan.reordered is UNSET:
        return None
    order = OperatorOrder(tuple(plan.order), tuple(plan.reordered.backward))
    require_order(order, graph)
    return order


def _backward(built: Built, order: OperatorOrder | None) -> BackwardOrder | None:
    if order is None:
        return None
    parameters, results = list(built.parameters.values()), list(built.results.values())
    return backward_order(built.instructions, parameters, results, order.backward)


def _specs(placement: Placement, parameters: Parameters, captured: Captured) -> list[ParameterSpec]:
    """Returns the specs of all parameters; frozen ones get no gradient, as in the module."""
    specs = []
    for name, pair in parameters.all().items():
        group = placement.groups[parameters.group[name]]
        tensor = placement.graph.tensors[name]
        specs.append(
            ParameterSpec(
                name=name,
                shape=tensor.shape,
                dtype=tensor.dtype,
                layout=pair.forward,
                gradient=pair.gradient,
                frozen=not captured.value(name).requires_grad,
                zero=group.zero,
                zero_axes=group.zero_axes,
                mesh=parameters.mesh[name],
                weights=group.weights,
            )
        )
    return specs


def note_axes(mesh: RankMesh, split: Split) -> None:
    """Notes the groups that an operator may need: its shares are exchanged along the axes of some
    of its variables."""
    variables = sorted({v for v in split if v is not None})
    for count in range(1, len(variables) + 1):
        for some in combinations(variables, count):
            mesh.need([a for a, v in enumerate(split) if v in some])


def note_groups(
    proportions: Proportions,
    specs: Sequence[ParameterSpec],
    written: Mapping[str, tuple[RankMesh, Layout]],
    captured: Captured,
) -> None:
    """Notes the groups in which parameters are summed and gathered, and `written` buffers made
    whole."""
    for spec in specs:
        place = ParameterPlacement(spec, proportions.whole)
        for axes in (place.repeated, place.sharding, place.summed, place.beyond):
            place.mesh.need(axes)
        for dim in range(len(spec.shape)):
            place.mesh.need(axes_of(spec.layout, dim))
    for name, (mesh, layout) in written.items():
        path = _to_whole(mesh, layout, proportions.whole)
        prepare_groups(proportions.whole, path, captured.value(name).shape, proportions.needed)


def _to_whole(mesh: RankMesh, layout: Layout, whole: RankMesh) -> list[Change]:
    """Returns the steps by which a buffer becomes whole on all ranks."""
    return redistribute_between(mesh, layout, whole, (REPLICATE,) * len(layout))


def _device(captured: Captured) -> torch.device:
    for parameter in captured.model.module.parameters():
        return parameter.device
    return torch.device("cpu")


def _attach(root: torch.nn.Module, path: str, tensor: torch.Tensor) -> None:
    """Registers a parameter or buffer under its dotted name."""
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
