"""A graph without its module: synthetic weights and inputs, to measure a step's time and memory.

Shapes, operators and strategy are the plan's; values are random numbers, and ids that are valid
wherever they are looked up. What is learnt means nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from shardwise.capture.converted import Converted
from shardwise.capture.model import Model
from shardwise.capture.values import value_of
from shardwise.errors import BadInput
from shardwise.execute.adapters import refuse_stored_graph
from shardwise.execute.captured import Captured
from shardwise.execute.micro_batch import micro_batch_graph
from shardwise.graph.graph import Graph, Tensor

SCALE = 0.02


def captured_from_graph(graph: Graph) -> Captured:
    """Returns the graph as if captured from a module with random weights; inputs are its `args`.

    Every rank gets the same numbers. Raises `BadInput` if the graph has no output, or parameters
    that are stored in another form than they are computed with.
    """
    refuse_stored_graph(graph)
    random = torch.Generator().manual_seed(0)
    module = torch.nn.Module()
    paths: dict[str, str] = {}
    constants: dict[str, Any] = {}
    for tensor in graph.tensors.values():
        if tensor.role == "parameter":
            paths[tensor.name] = _register(module, tensor, len(paths), random)
        elif tensor.role == "buffer":
            constants[tensor.name] = value_of(graph, tensor, random)
    inputs = [t for t in graph.tensors.values() if t.role == "input"]
    outputs = [t.name for t in graph.tensors.values() if t.role == "output"]
    if not outputs:
        raise BadInput("the graph has no output", field="graph", expected="a loss")
    args = tuple(value_of(graph, t, random) for t in inputs)
    names = tuple(t.name for t in inputs)
    model = Model(module, args, {}, input_names=names)
    converted = Converted(graph, paths, constants, names, tuple(outputs))
    return Captured(model, converted, pytree.tree_structure([0] * len(outputs)), _cut)


def _cut(captured: Captured, parts: int) -> Captured:
    converted = replace(captured.converted, graph=micro_batch_graph(captured.graph, parts))
    return Captured(captured.model, converted, captured.returns, _cut)


def _register(module: Any, tensor: Tensor, number: int, random: torch.Generator) -> str:
    dtype = getattr(torch, tensor.dtype)
    data = torch.ones(tensor.shape, dtype=dtype)
    if len(tensor.shape) > 1:
        data = (torch.randn(tensor.shape, generator=random) * SCALE).to(dtype)
    name = f"p{number}"
    module.register_parameter(name, torch.nn.Parameter(data, requires_grad=tensor.trains))
    return name
