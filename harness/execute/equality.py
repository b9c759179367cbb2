"""One strategy against one device: loss, gradients, parameters and running statistics.

The error of a gradient (or parameter) is the largest difference over the largest absolute value of
the reference, which counts as at least a hundredth of the largest in any of the module's: a
gradient that is zero up to rounding has no relative error. Adam runs with eps 1e-4: with its
1e-8 it would turn the rounding errors of such gradients into steps of full length.
"""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch.utils import _pytree as pytree

from harness.execute.bounds import TOLERANCE
from harness.execute.families import TOYS, computing, make
from harness.execute.strategies import Strategies
from harness.execute.through_host import install
from shardwise import documents
from shardwise.capture.model import Model
from shardwise.errors import CaptureError
from shardwise.execute.captured import Captured, capture_module, smaller
from shardwise.execute.collectives import run
from shardwise.execute.communication import CommunicationClock
from shardwise.execute.exchange import Exchange
from shardwise.execute.instruction import Instruction, Slots
from shardwise.execute.local import local_operator
from shardwise.execute.parallel import ParallelModule, mesh_of
from shardwise.execute.rank_mesh import RankMesh
from shardwise.execute.redistribute import redistribute
from shardwise.sharding.layout import REPLICATE
from shardwise.tdl.registry import analyse

STEPS = 5
ADAM = {"lr": 1e-3, "eps": 1e-4}
FLOOR = 1e-2
DOUBLE = " float64"
"""Ends the names of cases in that type."""


@dataclass
class Case:
    """A family, made and captured once in the parent of all ranks."""

    name: str
    model: Model
    captured: Captured
    micro_batches: tuple[int, ...] = (1, 2)

    @cached_property
    def strategies(self) -> Strategies:
        """Random plans of it, for who draws them: not needed on ranks."""
        return Strategies(self.captured.graph, self.micro_batches)

    @property
    def family(self) -> str:
        """The key in `TOYS`."""
        return self.name.removesuffix(DOUBLE)

    def computing(self) -> AbstractContextManager[None]:
        """The context in which the module runs as it was captured."""
        dtype = torch.float32 if self.family == self.name else torch.float64
        return computing(TOYS[self.family], dtype)

    @classmethod
    def of(cls, name: str, dtype: torch.dtype = torch.float32) -> Case:
        """Makes and captures a family."""
        case = name if dtype == torch.float32 else f"{name}{DOUBLE}"
        model = make(name, dtype)
        with computing(TOYS[name], dtype):
            captured = capture_module(model, name)
            try:
                # For plans with micro-batches, here once and not on every rank.
                smaller(captured, 2)
            except CaptureError:
                # The module has its batch written into it.
                return cls(case, model, captured, (1,))
        return cls(case, model, captured)


def case_of(name: str) -> Case:
    """Returns a family, which the first call makes and captures; in float64 if `DOUBLE` ends its
    name."""
    if name not in CASES:
        family = name.removesuffix(DOUBLE)
        CASES[name] = Case.of(family, torch.float32 if family == name else torch.float64)
    return CASES[name]


@dataclass
class Errors:
    """The worst of every kind over all steps."""

    loss: float = 0.0
    gradient: float = 0.0
    parameter: float = 0.0
    buffer: float = 0.0
    worst: str = ""
    fallbacks: dict[str, str] = field(default_factory=dict)

    @property
    def largest(self) -> float:
        """The largest of all."""
        return max(self.loss, self.gradient, self.parameter, self.buffer)


@dataclass
class Reference:
    """What one device gets: per step the loss, gradients and new parameters; last buffers."""

    losses: list[float]
    gradients: list[dict[str, torch.Tensor]]
    parameters: list[dict[str, torch.Tensor]]
    buffers: dict[str, torch.Tensor]


DEVICE = torch.device("cpu")
"""Where all ranks compute, the reference too."""
LIKE_NCCL = False
"""Whether collectives run as `through_host.py` has them, which all ranks of one GPU need."""
CASES: dict[str, Case] = {}
_REFERENCES: dict[tuple[str, int, int], Reference] = {}
_MESHES: dict[Any, RankMesh] = {}


def reference(case: Case, parts: int, steps: int) -> Reference:
    """Trains a copy of the module on this process alone, in `parts` micro-batches."""
    key = (case.name, parts, steps)
    if key not in _REFERENCES:
        _REFERENCES[key] = _trained(case, parts, steps)
    return _REFERENCES[key]


def _trained(case: Case, parts: int, steps: int) -> Reference:
    model = case.model
    module = copy.deepcopy(model.module).to(DEVICE)
    optimizer = torch.optim.Adam(module.parameters(), **ADAM)
    paths = {path: name for name, path in case.captured.converted.paths.items()}
    trained = Reference([], [], [], {})
    with case.computing():
        for _ in range(steps):
            optimizer.zero_grad()
            total = 0.0
            for part in range(parts):
                batch = pytree.tree_map(_there, _part(case, part, parts))
                loss = module(*batch) / parts
                loss.backward()
                total += float(loss.detach())
            trained.losses.append(total)
            trained.gradients.append(
                {
                    paths[path]: torch.zeros_like(p) if p.grad is None else p.grad.clone()
                    for path, p in module.named_parameters()
                    if path in paths
                }
            )
            optimizer.step()
            trained.parameters.append(
                {paths[n]: p.detach().clone() for n, p in module.named_parameters() if n in paths}
            )
    trained.buffers = {paths[n]: b.clone() for n, b in module.named_buffers() if n in paths}
    return trained


def _there(leaf: Any) -> Any:
    return leaf.to(DEVICE) if isinstance(leaf, torch.Tensor) else leaf


def _part(case: Case, part: int, parts: int) -> Any:
    names = iter(case.captured.converted.inputs)
    tensors = case.captured.graph.tensors

    def cut(leaf: Any) -> Any:
        name = next(names)
        dim = None if name is None else tensors[name].batch_dim
        return leaf if dim is None else leaf.chunk(parts, dim=dim)[part]

    return pytree.tree_map(cut, case.model.args)


def parallel(case: Case, plan: dict[str, Any], compile: bool = False) -> ParallelModule:
    """Returns the family's module as the plan runs it; process groups are made once per mesh."""
    if LIKE_NCCL:
        install()
    torch.backends.cudnn.allow_tf32 = False  # else convolutions keep 10 bits on a GPU
    checked = documents.read(plan, documents.Plan)
    mesh = mesh_of(checked, dist.get_rank())
    mesh = _MESHES.setdefault((type(mesh), mesh.names, mesh.sizes), mesh)
    with case.computing():
        return ParallelModule(case.captured, checked, mesh, DEVICE, compile=compile)


def compare_there(
    rank: int, device: str, name: str, plan: dict[str, Any], steps: int = STEPS
) -> Errors | None:
    """Is `compare` on another device, for ranks that inherited no case: each makes its own."""
    global DEVICE, LIKE_NCCL
    DEVICE, LIKE_NCCL = torch.device(device), True
    case_of(name)
    return compare(rank, name, plan, steps)


def compare(
    rank: int, name: str, plan: dict[str, Any], steps: int = STEPS, compile: bool = False
) -> Errors | None:
    """Trains under the plan on all ranks. Returns the errors on rank 0, None elsewhere."""
    case = CASES[name]
    model = parallel(case, plan, compile)
    optimizer = torch.optim.Adam(model.parameters(), **ADAM)
    whole = reference(case, plan["micro_batches"], steps) if rank == 0 else None
    errors = Errors(fallbacks=dict(model.program.fallbacks))
    parameters = model.store.parameters()
    with case.computing():
        for step in range(steps):
            optimizer.zero_grad()
            # The last step has a barrier of all ranks around each collective: one program for all.
            # With devices of several kinds those of a collective wait: one order for all.
            clock = CommunicationClock(DEVICE, everyone="cluster" not in plan)
            with clock if step == steps - 1 else nullcontext():
                loss = model(*case.model.args)
                loss.backward()
            gradients = {
                n: model.store.whole(n, torch.zeros_like(p) if p.grad is None else p.grad)
                for n, p in parameters.items()
            }
            optimizer.step()
            after = {n: model.store.whole(n, p) for n, p in parameters.items()}
            if whole is None:
                continue
            wanted = whole.losses[step]
            errors.loss = max(errors.loss, abs(float(loss.detach()) - wanted) / abs(wanted))
            _take(errors, "gradient", gradients, whole.gradients[step], step)
            _take(errors, "parameter", after, whole.parameters[step], step)
    model.sync_buffers()
    if whole is None:
        return None
    buffers = {
        n: b for n, b in model.named_buffers() if n in whole.buffers and b.is_floating_point()
    }
    _take(errors, "buffer", buffers, {n: whole.buffers[n] for n in buffers}, steps)
    return errors


def _take(
    errors: Errors,
    kind: str,
    computed: dict[str, torch.Tensor],
    wanted: dict[str, torch.Tensor],
    step: int,
) -> None:
    if not wanted:
        return
    largest = max(float(t.abs().max()) for t in wanted.values())
    for name, tensor in wanted.items():
        if name not in computed:
            continue
        scale = max(float(tensor.abs().max()), FLOOR * largest)
        difference = (computed[name].to(tensor.dtype) - tensor).abs().max()
        error = float(difference) / scale if scale else float(difference)
        if not error <= getattr(errors, kind):
            setattr(errors, kind, error)
            if error > TOLERANCE and not errors.worst:
                errors.worst = f"{kind} of {name} in step {step}: {error:.1e}"


def first_difference(
    rank: int, name: str, plan: dict[str, Any], tolerance: float = TOLERANCE
) -> list[str]:
    """Returns the operators whose results, then gradients, first differ from one device's."""
    case = CASES[name]
    model = parallel(case, plan)
    values, gradients = _whole_values(case) if rank == 0 else ({}, {})
    pairs = model._programs[0].pairs
    seen: dict[str, Any] = {}
    lines: list[str] = []
    traced: list[tuple[str, torch.Tensor, Any]] = []

    def whole(tensor: torch.Tensor, layout: Any, name: str) -> torch.Tensor:
        path = redistribute(layout, (REPLICATE,) * len(layout))
        shape = case.captured.graph.tensors[name].shape
        return run(tensor.detach(), path, model._mesh, shape)

    def watch(instruction: Instruction, slots: Slots) -> None:
        for tensor_name, slot in zip(instruction.tensors, instruction.outputs, strict=False):
            if slot not in pairs or tensor_name not in model._captured.graph.tensors:
                continue
            tensor = slots[slot]
            shape = case.captured.graph.tensors[tensor_name].shape
            local = model._mesh.local_shape(shape, pairs[slot].forward)
            if tuple(tensor.shape) != local:
                raise AssertionError(
                    f"{instruction.name} makes {list(tensor.shape)}, its layout wants {local}: "
                    f"{lines}"
                )
            if tensor.requires_grad:
                tensor.retain_grad()
                traced.append((tensor_name, tensor, pairs[slot]))
            gathered = whole(tensor, pairs[slot].forward, tensor_name)
            if rank == 0:
                _differs(
                    lines, instruction.name, "forward", gathered, values[tensor_name], tolerance
                )

    if plan["micro_batches"] > 1:
        return ["not traced: micro-batches"]
    with case.computing():
        loss = model.run(case.model.args, {}, watch)
        loss.backward()
    for tensor_name, tensor, pair in reversed(traced):
        grad = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
        gathered = whole(grad, pair.gradient, tensor_name)
        if rank == 0 and tensor_name in gradients:
            _differs(lines, tensor_name, "gradient", gathered, gradients[tensor_name], tolerance)
    seen.clear()
    return lines


def _differs(
    lines: list[str],
    name: str,
    which: str,
    computed: torch.Tensor,
    wanted: torch.Tensor,
    tolerance: float,
) -> None:
    if computed.shape != wanted.shape:
        lines.append(f"{which} {name}: shape {list(computed.shape)}, not {list(wanted.shape)}")
        return
    a, b = computed.double(), wanted.detach().double()
    a, b = torch.nan_to_num(a, neginf=-1e30, posinf=1e30), torch.nan_to_num(b, neginf=-1e30)
    scale = max(float(b.abs().max()), 1e-6)
    error = float((a - b).abs().max()) / scale
    if error > tolerance:
        lines.append(f"{which} {name}: {error:.1e} of {scale:.1e}")


def _whole_values(case: Case) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Returns every tensor of the graph and its gradient, on this process alone."""
    graph, mesh = case.captured.graph, RankMesh((), (), 0)
    exchange = Exchange(mesh)
    values: dict[str, torch.Tensor] = {}
    leaves = pytree.tree_leaves((case.model.args, dict(case.model.kwargs)))
    for name, leaf in zip(case.captured.converted.inputs, leaves, strict=True):
        if name is not None:
            values[name] = leaf
    for name, tensor in graph.tensors.items():
        if tensor.role in ("parameter", "buffer"):
            value = case.captured.value(name).detach().clone()
            values[name] = value.requires_grad_(tensor.role == "parameter")
    for op in graph.operators:
        semantics = analyse(op, graph.tensors)
        local = local_operator(op, graph.tensors, semantics, (), mesh, exchange)
        for name, value in zip(op.outputs, local(*[values[n] for n in op.inputs]), strict=True):
            if value.requires_grad:
                value.retain_grad()
            values[name] = value
    outputs = [n for n in case.captured.converted.outputs if n is not None]
    values[outputs[0]].backward()
    gradients = {n: v.grad for n, v in values.items() if v.requires_grad and v.grad is not None}
    return values, gradients
