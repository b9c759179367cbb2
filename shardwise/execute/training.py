"""`shardwise run` on one rank: trains a few steps by a plan and writes what it measured."""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from msgspec import UNSET
from torch.utils import _pytree as pytree

from shardwise import __version__
from shardwise.capture.capture import build
from shardwise.capture.model import Model
from shardwise.capture.source import parse_source
from shardwise.cost.step_settings import FUSED
from shardwise.documents import Plan
from shardwise.errors import BadInput
from shardwise.execute.adapters import adapt, refuse_stored
from shardwise.execute.agreement import require_kinds
from shardwise.execute.captured import Captured, capture_module, difference, smaller
from shardwise.execute.master_weights import optimizer_of
from shardwise.execute.pipeline.document import strategy_of
from shardwise.execute.planned import planned_module, require_runnable
from shardwise.execute.synthetic import captured_from_graph
from shardwise.execute.timing import time_steps
from shardwise.graph import Graph, graph_id
from shardwise.graph.tuning import FULL, tuned
from shardwise.measure.cores import settle_on_cpu
from shardwise.measure.device import cpu_kind
from shardwise.measure.labels import LONGEST, NO_LABEL, Label
from shardwise.measure.measurement import measurement_document
from shardwise.measure.rank import meet
from shardwise.measure.world import World
from shardwise.outfiles import write_json


@dataclass(frozen=True)
class RunOptions:
    """What to train, and for how long: a graph, or a source as `shardwise capture` takes it."""

    model: Graph | str
    batch: int | None = None
    seq: int | None = None
    dtype: str | None = None
    steps: int = 10
    warm_up: int = 3
    compile: bool | None = None
    """As `parallelize` has it."""
    label: Label = NO_LABEL
    """Of what kind this rank's device is, and how much slower it is on purpose."""


def train(plan: Plan, world: World, options: RunOptions) -> dict[str, Any] | None:
    """Takes part in a run of the plan; returns the `shardwise.measurement/1` document on rank 0.

    Raises `BadInput` if the plan is for another number of ranks or another graph, or is to be
    compiled and cannot be, or has other kinds of devices than the ranks; `PeersLost` if the other
    ranks do not come.
    """
    device = _device(world)
    if device.type == "cpu":
        cores = settle_on_cpu(world.local_rank, world.ranks_per_node)
        if "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(cores)
    backend = "nccl" if device.type == "cuda" else "gloo"
    # Before the ranks meet: one that refuses would cut off one still connecting.
    slowed = options.label.slowed if options.label.slowed.times > 1 else None
    require_runnable(plan, options.compile, slowed)
    captured = _captured(strategy_of(plan), options)
    smaller(captured, plan.micro_batches)
    meet(dist, world, backend, device if backend == "nccl" else None)
    try:
        if plan.kinds:
            field = "stages" if plan.piped else "cluster.blocks"
            require_kinds(plan.kinds, options.label.kind or _kind(device), field)
        model = planned_module(captured, plan, device, options.compile, slowed)
        inputs, named = model.share(*captured.model.args, **dict(captured.model.kwargs))
        optimizer = optimizer_of(
            model.parameters(), plan.optimizer, fused=_is_fused(plan, device.type)
        )
        waited_s: list[float] = []

        def step() -> None:
            before = model.waited_s
            optimizer.zero_grad()
            _loss(model(*inputs, **named)).backward()
            optimizer.step()
            waited_s.append(model.waited_s - before)

        def resident() -> Any:
            state = [v for s in optimizer.state.values() for v in s.values()]
            return [list(model.parameters()), list(model.buffers()), state, inputs, named]

        times = time_steps(
            step,
            resident,
            device,
            warm_up=options.warm_up,
            steps=options.steps,
            one_program=not plan.piped and plan.cluster is UNSET,
        )
        waits_s: list[Any] = [None] * world.size
        ordinary = slice(options.warm_up, options.warm_up + options.steps)
        dist.all_gather_object(waits_s, waited_s[ordinary])
        if world.rank:
            return None
        versions = {
            "torch": str(torch.__version__),
            "shardwise": __version__,
            "python": platform.python_version(),
        }
        return measurement_document(
            plan,
            iterations_s=times.iterations_s,
            waits_s=waits_s,
            compute_s=times.compute_s,
            communication_s=times.communication_s,
            peak_bytes=times.peak_bytes,
            backend=backend,
            device_kind=_counted(plan.kinds) or options.label.kind or _kind(device),
            versions=versions,
            calls=times.calls,
            fallbacks=model.program.fallbacks,
            compiled_operators=sum(map(len, model.program.regions)),
            not_compiled=model.program.obstacle,
        )
    finally:
        dist.destroy_process_group()


def _is_fused(plan: Plan, device: str) -> bool:
    """Returns whether a run updates as a plan for GPUs with a fused update prices it."""
    if plan.execution is UNSET:
        return False
    return device == "cuda" and plan.execution.update == FUSED


def write_report(document: Mapping[str, Any], folder: Path) -> None:
    """Writes the report where an agent looks for it: whole or not at all."""
    folder.mkdir(exist_ok=True)
    write_json(document, str(folder / "measurement.json"))


def _captured(plan: Plan, options: RunOptions) -> Captured:
    tune = plan.tune or FULL
    if isinstance(options.model, Graph):
        _require(options.model, plan)
        return captured_from_graph(tuned(options.model, tune))
    refuse_stored(tune)
    parsed = parse_source(options.model)
    built = build(parsed, options.batch, options.seq, options.dtype)
    _materialise(built.module)
    random = torch.Generator().manual_seed(0)
    args, kwargs = pytree.tree_map(lambda t: _values(t, random), (built.args, dict(built.kwargs)))
    model = Model(built.module, args, kwargs, built.prefix, built.input_names)
    captured = capture_module(model, plan.graph_name)
    _require(captured.graph, plan)
    return captured if tune == FULL else capture_module(adapt(captured, tune), plan.graph_name)


def _require(graph: Graph, plan: Plan) -> None:
    if graph_id(graph) != plan.graph:
        raise BadInput(
            f"the graph is not the one that the plan was made for: {difference(graph, plan)}",
            field="graph",
            expected=f"the graph {plan.graph} ({plan.graph_name})",
        )


def _materialise(module: Any) -> None:
    """Gives a module on the meta device real, random weights; tied ones stay tied."""
    replaced: dict[int, Any] = {}
    random = torch.Generator().manual_seed(0)

    def real(tensor: Any) -> Any:
        if tensor.device.type != "meta":
            return tensor
        if id(tensor) not in replaced:
            data = torch.ones(tensor.shape, dtype=tensor.dtype)
            if isinstance(tensor, torch.nn.Parameter):
                if tensor.dim() > 1:
                    data = (torch.randn(tensor.shape, generator=random) * 0.02).to(tensor.dtype)
                data = torch.nn.Parameter(data, requires_grad=tensor.requires_grad)
            replaced[id(tensor)] = data
        return replaced[id(tensor)]

    for child in module.modules():
        for table in (child._parameters, child._buffers):
            for name, tensor in table.items():
                if tensor is not None:
                    table[name] = real(tensor)


def _values(tensor: Any, random: torch.Generator) -> Any:
    if not isinstance(tensor, torch.Tensor):
        return tensor
    if tensor.is_floating_point():
        return torch.randn(tensor.shape, generator=random).to(tensor.dtype)
    # 0 is a valid id everywhere.
    return torch.zeros(tensor.shape, dtype=tensor.dtype)


def _loss(returned: Any) -> Any:
    """Returns the scalar among what the module returns, or the sum of what it returns."""
    tensors = [t for t in pytree.tree_leaves(returned) if isinstance(t, torch.Tensor)]
    floats = [t for t in tensors if t.is_floating_point()]
    scalars = [t for t in floats if t.numel() == 1]
    if scalars:
        return scalars[0].reshape(())
    if not floats:
        raise BadInput(
            "the model returns no number to minimise",
            field="graph",
            expected="a model whose forward returns its loss, or an output with a loss",
        )
    return sum(t.float().sum() for t in floats)


def _device(world: World) -> torch.device:
    if torch.cuda.device_count() >= world.ranks_per_node:
        torch.cuda.set_device(world.local_rank)
        return torch.device("cuda", world.local_rank)
    return torch.device("cpu")


def _counted(kinds: Sequence[str]) -> str:
    """Returns kinds of devices by rank in words, each with its devices."""
    counts = Counter(kinds)
    return ", ".join(f"{count} {kind}" for kind, count in counts.items())[:LONGEST]


def _kind(device: torch.device) -> str:
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return cpu_kind(torch.get_num_threads())
