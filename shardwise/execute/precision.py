"""Plans in 16 bits of a module in 32: which tensors have how many, and the casts around operators.

What a tensor has is what the plan prices (`shardwise.advise.precision`). An operator computes in 16
bits where it reads or makes a tensor in 16 bits, except: where all that it makes is wide and so is
something that it was given, as at the end of a loss; and what batch normalisation has beside its
data (running statistics do not fit into 16 bits). Buffers, and what is computed of them alone, stay
as the module has them until they are read: the angles of rotary embeddings need it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from shardwise.advise.precision import PRECISIONS, narrow_graph
from shardwise.errors import BadInput
from shardwise.execute.instruction import written_ports
from shardwise.execute.local.calling import HALVES, Run
from shardwise.graph.graph import Graph, Operator


def planned_graph(graph: Graph, plan: Mapping[str, Any]) -> Graph:
    """The graph with the dtypes of the plan; raises `BadInput` for an unknown precision."""
    precision = plan.get("precision", "captured")
    if precision not in PRECISIONS:
        raise BadInput(
            f"unknown precision {precision!r}", field="precision", expected=", ".join(PRECISIONS)
        )
    kept = {
        op["name"]
        for group in plan["groups"]
        for op in group["operators"]
        if op.get("precision") == "captured"
    }
    return narrow_graph(graph, precision, lambda op: op.name in kept)


def with_casts(run: Run, op: Operator, captured: Graph, planned: Graph) -> Run:
    """`run` of `op` with its local inputs and outputs cast.

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
    made, read = _are_wide(op.outputs, planned), _are_wide(op.inputs, planned)
    if made and all(made) and any(read):
        inner = torch.float32
    beside = torch.float32 if written_ports(op, planned) else inner

    def cast(*inputs: Any) -> list[Any]:
        given = [_to(x, beside if i else inner) for i, x in enumerate(inputs)]
        made = run(*given)
        return [_to(y, dtype) for y, dtype in zip(made, declared, strict=False)]

    return cast


def _are_wide(names: tuple[str, ...], graph: Graph) -> list[bool]:
    """Of each of these activations, as far as they are numbers that are cast, if it has 32 bits."""
    tensors = (graph.tensors[n] for n in names)
    return [
        t.dtype == "float32"
        for t in tensors
        if getattr(torch, t.dtype) in _CAST and t.role in ("input", "activation", "output")
    ]


_CAST = (torch.float32, *HALVES)


def _to(x: Any, dtype: Any) -> Any:
    return x.to(dtype) if x.dtype is not dtype and x.dtype in _CAST and dtype in _CAST else x
