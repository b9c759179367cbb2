"""16-bit plans of a 32-bit module: each tensor's precision, and the casts around operators.

The plan's prices determine a tensor's precision (`shardwise.sharding.precision`). An operator
computes in 16 bits if it reads or makes a tensor in 16 bits, with two exceptions: operators whose
results are all 32-bit and that read some 32-bit tensor, as at the end of a loss; and the inputs of
batch normalisation other than its data (running statistics do not fit into 16 bits). Buffers, and
what is computed from them alone, keep the module's precision until they are read: the angles of
rotary embeddings need it.
"""

from __future__ import annotations

from typing import Any

import torch
from msgspec import UNSET

from shardwise.documents import Plan
from shardwise.errors import BadInput
from shardwise.execute.local.calling import HALVES, Run
from shardwise.graph.graph import Graph, Operator
from shardwise.graph.order import written_ports
from shardwise.sharding.precision import PRECISIONS, Own, narrow_graph, recipes_of
from shardwise.sharding.recipes import Recipe


def planned_graph(graph: Graph, plan: Plan) -> Graph:
    """Returns the graph with the plan's dtypes; raises `BadInput` for an unknown precision."""
    precision = plan.precision
    if precision not in PRECISIONS:
        raise BadInput(
            f"unknown precision {precision!r}", field="precision", expected=", ".join(PRECISIONS)
        )
    return narrow_graph(graph, precision, own_precisions(plan))


def planned_recipes(graph: Graph, plan: Plan) -> dict[str, Recipe]:
    """Returns the recipes of the operators that compute in 8 or 4 bits, by name."""
    return recipes_of(graph, plan.precision, own_precisions(plan))


def own_precisions(plan: Plan) -> Own:
    """Returns which precision the plan gives an operator for itself, if any."""
    own = {
        op.name: op.precision
        for group in plan.groups
        for op in group.operators
        if op.precision is not UNSET
    }
    return lambda op: own.get(op.name)


def with_casts(run: Run, op: Operator, captured: Graph, planned: Graph) -> Run:
    """Returns `run` of `op` with its local inputs and outputs cast.

    `captured` and `planned` are the graph before and after `planned_graph`.
    """
    touched = [*op.inputs, *op.outputs]
    narrow = {
        planned.tensors[n].dtype
        for n in touched
        if planned.tensors[n].dtype != captured.tensors[n].dtype
    }
    if not narrow:
        return run
    declared = [getattr(torch, planned.tensors[n].dtype) for n in op.outputs]
    inner: Any = getattr(torch, narrow.pop())
    wide_outputs, wide_inputs = _are_wide(op.outputs, planned), _are_wide(op.inputs, planned)
    if wide_outputs and all(wide_outputs) and any(wide_inputs):
        inner = torch.float32
    others = torch.float32 if written_ports(op, planned) else inner

    def cast(*inputs: Any) -> list[Any]:
        given = [_to(x, others if i else inner) for i, x in enumerate(inputs)]
        results = run(*given)
        return [_to(y, dtype) for y, dtype in zip(results, declared, strict=False)]

    return cast


def _are_wide(names: tuple[str, ...], graph: Graph) -> list[bool]:
    """Returns for each of these activations that is cast at all whether it has 32 bits."""
    tensors = (graph.tensors[n] for n in names)
    return [
        t.dtype == "float32"
        for t in tensors
        if getattr(torch, t.dtype) in _CAST and t.role in ("input", "activation", "output")
    ]


_CAST = (torch.float32, *HALVES)


def _to(x: Any, dtype: Any) -> Any:
    return x.to(dtype) if x.dtype is not dtype and x.dtype in _CAST and dtype in _CAST else x
