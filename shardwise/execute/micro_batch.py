"""The graph of one micro-batch, where there is a graph but no module to capture on fewer samples.

The batch is followed both ways, as in `sharding/batch.py`: a class token expanded to one per
sample, or positions made for every row, are read beside samples and so have one row for each.
Unlike there a tensor may have two such dimensions. Sizes in the attributes of operators that make
tensors of a given size follow, and so do lists of lengths of sequences; then torch gives every
operator's shapes, which tells what does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from shardwise.errors import BadInput
from shardwise.execute.local.calling import bind, complete_attributes
from shardwise.graph.graph import Graph, Operator, Tensor
from shardwise.graph.semantics import OperatorSemantics
from shardwise.sharding.micro_batches import require_divisor, smaller_tensor
from shardwise.tdl import registry
from shardwise.torch_operators import overload

SIZES = ("size", "shape")
"""Attributes that give the shape of the first output."""

LENGTHS = ("input_lengths", "target_lengths")
"""Attributes that give a number for every sequence of the batch."""


def micro_batch_graph(graph: Graph, micro_batches: int) -> Graph:
    """Returns the graph on a batch of 1 / `micro_batches`, as its module would be captured on it.

    Raises `BadInput` when the graph's batch cannot be divided so, or an operator has a size that
    depends on the batch in a way that is not known.
    """
    require_divisor(graph.batch_size, micro_batches)
    semantics = {op.name: registry.analyse(op, graph.tensors) for op in graph.operators}
    dims = _batch_dims(graph, semantics)
    tensors = {
        name: smaller_tensor(tensor, dims.get(name, set()), micro_batches)
        for name, tensor in graph.tensors.items()
    }
    operators = tuple(_resized(op, graph, tensors, dims, micro_batches) for op in graph.operators)
    small = Graph(graph.name, tensors, operators)
    _require_shapes(small, micro_batches)
    return small


def _batch_dims(graph: Graph, semantics: Mapping[str, OperatorSemantics]) -> Mapping[str, Set[int]]:
    """Returns the dimensions of each tensor that the batch runs along; some have two (CLIP)."""
    dims: dict[str, set[int]] = {
        name: {t.batch_dim}
        for name, t in graph.tensors.items()
        if t.role == "input" and t.batch_dim is not None
    }
    known = -1
    while known != (known := sum(map(len, dims.values()))):
        for op in (*graph.operators, *reversed(graph.operators)):
            _follow(graph, op, semantics[op.name], dims)
    return dims


def _follow(
    graph: Graph, op: Operator, semantics: OperatorSemantics, dims: dict[str, set[int]]
) -> None:
    """Adds what one operator says: an index variable that runs along a batch does so everywhere."""
    places = [
        *zip(op.inputs, semantics.inputs, strict=True),
        *zip(op.outputs, semantics.outputs, strict=True),
    ]
    chosen = {
        v
        for name, accesses in places
        for v, access in accesses.items()
        if access.dim in dims.get(name, ())
    }
    for name, accesses in places:
        if graph.tensors[name].role in ("activation", "output"):
            for v in chosen & accesses.keys():
                dims.setdefault(name, set()).add(accesses[v].dim)


def _resized(
    op: Operator,
    graph: Graph,
    tensors: Mapping[str, Tensor],
    dims: Mapping[str, Set[int]],
    parts: int,
) -> Operator:
    """Returns the operator with the sizes among its attributes as its output now has them."""
    along = dims.get(op.outputs[0], set())
    before, after = (given[op.outputs[0]].shape for given in (graph.tensors, tensors))
    changed: dict[str, Any] = {}
    for name, value in op.attributes.items():
        if name in SIZES and isinstance(value, list | tuple) and len(value) == len(before):
            changed[name] = [after[d] if n == before[d] else n for d, n in enumerate(value)]
        elif name == "repeats" and isinstance(value, list | tuple):
            more = len(value) - len(graph.tensors[op.inputs[0]].shape)
            whole = {more + d for d in dims.get(op.inputs[0], ())}
            changed[name] = [n // parts if d in along - whole else n for d, n in enumerate(value)]
        elif name == "end" and op.kind.startswith("aten.arange") and along:
            start, step = op.attributes.get("start", 0) or 0, op.attributes.get("step", 1) or 1
            changed[name] = start + step * after[0]
        elif name in LENGTHS and dims.get(op.inputs[0]) and isinstance(value, list | tuple):
            changed[name] = _lengths(op, name, value, parts)
    return replace(op, attributes={**op.attributes, **changed}) if changed else op


def _lengths(op: Operator, name: str, value: Sequence[int], parts: int) -> list[int]:
    """Returns the lengths of one micro-batch's sequences, which must be those of every other's."""
    few = len(value) // parts
    if list(value) != list(value[:few]) * parts:
        raise _unknown(op, parts, f"its {name} differ from one micro-batch to the next")
    return list(value[:few])


def _require_shapes(graph: Graph, parts: int) -> None:
    """Raises `BadInput` unless torch makes tensors of the graph's shapes of every operator."""
    with FakeTensorMode(), torch.no_grad():
        for op in graph.operators:
            wanted = [graph.tensors[name].shape for name in op.outputs]
            try:
                made = [tuple(t.shape) for t in _made(op, graph.tensors)]
            except (RuntimeError, TypeError, ValueError, IndexError) as error:
                raise _unknown(op, parts, (str(error).splitlines() or [""])[0]) from error
            if made != wanted:
                raise _unknown(op, parts, f"makes {made}, not {wanted}")


def _made(op: Operator, tensors: Mapping[str, Tensor]) -> list[Any]:
    target = overload(op.kind)
    names = op.attributes["tensor_arguments"]
    attributes = {"device": torch.device("cpu"), **op.attributes}
    run = bind(target, names, complete_attributes(target, attributes, names), len(op.outputs))
    return run(
        *(torch.empty(tensors[n].shape, dtype=getattr(torch, tensors[n].dtype)) for n in op.inputs)
    )[: len(op.outputs)]


def _unknown(op: Operator, parts: int, why: str) -> BadInput:
    return BadInput(
        f"operator {op.name} ({op.kind}) cannot be run on 1 / {parts} of the batch: {why}",
        field="micro_batches",
        expected="--source, as `shardwise capture` took it, or a plan with one micro-batch",
    )
