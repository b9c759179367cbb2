"""A module captured for execution: its graph, and where the values of its tensors are."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from msgspec import UNSET
from torch.utils import _pytree as pytree

from shardwise.capture.convert import convert
from shardwise.capture.converted import Converted
from shardwise.capture.export import export
from shardwise.capture.model import Model, arguments
from shardwise.documents import Plan
from shardwise.errors import BadInput, CaptureError
from shardwise.graph.document import graph_id
from shardwise.graph.graph import Graph
from shardwise.graph.validate import validate_graph
from shardwise.sharding.micro_batches import require_divisor

WRAPPER = "model."
"""The attribute path that the names of shipped and transformers models leave out."""


@dataclass(frozen=True)
class Captured:
    """A module with its training graph. `returns` is the structure of what forward returns.

    `cut` makes the capture on a batch of 1 / parts; without it the module is captured again.
    """

    model: Model
    converted: Converted
    returns: Any
    cut: Callable[[Captured, int], Captured] | None = None
    _smaller: dict[int, Captured] = field(default_factory=dict)

    @property
    def graph(self) -> Graph:
        return self.converted.graph

    def without_values(self) -> Captured:
        """Returns the capture without the module and its tensors, which it otherwise keeps."""
        model = replace(self.model, module=torch.nn.Module(), args=(), kwargs={})
        return Captured(model, replace(self.converted, constants={}), self.returns)

    def value(self, name: str) -> torch.Tensor:
        """Returns the module's own tensor for a parameter or buffer of the graph."""
        if name in self.converted.constants:
            return self.converted.constants[name]
        owner, _, last = self.converted.paths[name].rpartition(".")
        return getattr(self.model.module.get_submodule(owner), last)


def capture_module(model: Model, name: str) -> Captured:
    """Exports the module as `shardwise capture` does, on its own tensors; computes nothing."""
    program = export(model, name)
    converted = convert(program, model, name)
    validate_graph(converted.graph)
    leaves = pytree.tree_leaves((model.args, dict(model.kwargs)))
    if len(leaves) != len(converted.inputs):
        raise CaptureError(
            f"the example inputs have {len(leaves)} leaves, the exported module "
            f"{len(converted.inputs)}",
            expected="arguments that the module's forward takes unchanged",
        )
    return Captured(model, converted, program.call_spec.out_spec)


def capture_for(
    module: Any,
    example_inputs: Sequence[Any] | Mapping[str, Any] | torch.Tensor,
    plan: Plan,
    graph: Graph | None = None,
) -> Captured:
    """Returns the capture of `module` that the plan was made for.

    Names in a graph depend on how it was captured, so besides the plain form it tries the form of
    shipped and transformers models. If none is the plan's graph, raises `BadInput` that says what
    differs.
    """
    args, kwargs = arguments(example_inputs)
    name = plan.graph_name
    plain = capture_module(Model(module, args, kwargs), name)
    if is_of_plan(plain.graph, plan):
        return plain
    names = tuple(
        t.name for t in (graph.tensors.values() if graph else ()) if t.role == "input"
    ) or tuple(_loaded(plan))
    named = Model(module, args, kwargs, WRAPPER, names)
    tried = [plain.graph]
    for form in (contextlib.nullcontext, *_forms()):
        with form():
            candidate = capture_module(named, name)
        if is_of_plan(candidate.graph, plan):
            return candidate
        tried.append(candidate.graph)
    nearest = max(tried, key=lambda graph: _agreeing(graph, plan))
    raise BadInput(
        f"the module is not the one that the plan was made for: {difference(nearest, plan)}",
        field="graph",
        expected=f"the graph {plan.graph}{f' with {plan.tune}' if plan.tune else ''}",
    )


def is_of_plan(graph: Graph, plan: Plan) -> bool:
    """Returns whether a plan was made for a graph: the one that it names, or where it tunes that,
    one with its adapters, whose operators the plan lists."""
    if not plan.tune:
        return graph_id(graph) == plan.graph
    names = {op.name for group in plan.groups for op in group.operators}
    own = {op.name for op in graph.operators}
    return names <= own and graph.batch_size == plan.batch_size


def _agreeing(graph: Graph, plan: Plan) -> int:
    """Returns how many operators precede the first whose name differs."""
    if not plan.order:
        kinds = _kinds(plan)
        return sum(kinds.get(op.name) == op.kind for op in graph.operators)
    order = _planned_order(graph, plan)
    pairs = enumerate(zip(graph.operators, order, strict=False))
    return next((n for n, (op, name) in pairs if op.name != name), len(order))


def _kinds(plan: Plan) -> dict[str, str]:
    """Returns the kind of each operator of a plan that is in a group."""
    return {op.name: op.kind for group in plan.groups for op in group.operators}


def _planned_order(graph: Graph, plan: Plan) -> list[str]:
    """Returns a plan's operators in the order of its graph: of `graph`, if they run in another."""
    if plan.reordered is UNSET:
        return list(plan.order)
    place = {op.name: number for number, op in enumerate(graph.operators)}
    return sorted(plan.order, key=lambda name: place.get(name, len(place)))


def _forms() -> list[Any]:
    """Returns other ways to capture a module: transformers' models of full sequences."""
    if importlib.util.find_spec("transformers") is None:
        return []
    from shardwise.capture.huggingface import training_form

    return [training_form]


def smaller(captured: Captured, parts: int) -> Captured:
    """Returns the module captured on a batch of 1 / `parts`; captures once per number of parts.

    Raises `BadInput` if the module then runs other operators, and like `Captured.cut`.
    """
    if parts == 1:
        return captured
    if parts not in captured._smaller:
        captured._smaller[parts] = (captured.cut or _capture_smaller)(captured, parts)
    return captured._smaller[parts]


def _capture_smaller(captured: Captured, parts: int) -> Captured:
    require_divisor(captured.graph.batch_size, parts)
    tensors = captured.graph.tensors
    names = iter(captured.converted.inputs)

    def cut(leaf: Any) -> Any:
        name = next(names)
        dim = None if name is None else tensors[name].batch_dim
        return leaf if dim is None else leaf.narrow(dim, 0, leaf.shape[dim] // parts)

    model = captured.model
    args, kwargs = pytree.tree_map(cut, (model.args, dict(model.kwargs)))
    recaptured = capture_module(
        Model(model.module, args, kwargs, model.prefix, model.input_names), captured.graph.name
    )
    same = [(op.name, op.kind) for op in captured.graph.operators]
    if [(op.name, op.kind) for op in recaptured.graph.operators] != same:
        raise BadInput(
            f"the module runs different operators on 1 / {parts} of the batch",
            field="micro_batches",
            expected="a module whose operators do not depend on the batch size",
        )
    return recaptured


def difference(graph: Graph, plan: Plan) -> str:
    """Returns what distinguishes a graph from a plan's graph, in one line."""
    kinds = _kinds(plan)
    if not plan.order:
        return _difference_of_kinds(graph, kinds) or _difference_beyond(graph, plan)
    order = _planned_order(graph, plan)
    for position, op in enumerate(graph.operators):
        if position >= len(order):
            return f"it has {len(graph.operators)} operators, the plan {len(order)}"
        other = kinds.get(order[position], op.kind)
        if op.name != order[position] or op.kind != other:
            return f"operator {position} is {op.name} ({op.kind}), the plan's {order[position]}"
    if len(order) > len(graph.operators):
        return f"it has {len(graph.operators)} operators, the plan {len(order)}"
    return _difference_beyond(graph, plan)


def _difference_of_kinds(graph: Graph, kinds: Mapping[str, str]) -> str | None:
    own = {op.name: op.kind for op in graph.operators}
    for name, kind in kinds.items():
        if name not in own:
            return f"it has no operator {name} ({kind})"
        if own[name] != kind:
            return f"operator {name} is {own[name]}, the plan's {kind}"
    return None


def _difference_beyond(graph: Graph, plan: Plan) -> str:
    if graph.batch_size != plan.batch_size:
        return f"its batch is {graph.batch_size}, the plan's {plan.batch_size}"
    return "it has the same operators, but other shapes, data types or attributes"


def _loaded(plan: Plan) -> list[str]:
    """Returns the graph inputs that a plan names, in the order in which they are first read."""
    loads = (load.tensor for group in plan.groups for op in group.operators for load in op.loads)
    return list(dict.fromkeys(loads))
