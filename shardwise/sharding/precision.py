"""Mixed precision: the graph as it would be if weights and activations had 16 bits.

Parameters, buffers and activations of float32 become 16 bits wide; the optimizer keeps float32
master weights and moments (`StepSettings.state`; Micikevicius et al. 2018). Losses
and softmaxes over classes stay in float32, as `torch.autocast` keeps them: what such an operator
reads and makes is not narrowed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from shardwise.graph.graph import Graph, Operator
from shardwise.sharding.coarsen import Coarsened

PRECISIONS = {"captured": None, "bf16": "bfloat16", "fp16": "float16"}
"""What activations and weights are computed in; `captured` leaves every dtype as it is."""

FULL_PRECISION = ("log_softmax", "nll_loss", "cross_entropy", "mse_loss", "binary_cross_entropy")
"""Operators that `torch.autocast` runs in float32, by the stem of their kind."""


def narrow(coarsened: Coarsened, precision: str, keeps: Callable[[Operator], bool]) -> Coarsened:
    """Returns the same groups with float32 tensors in 16 bits.

    Operators that `keeps` names stay.
    """
    graph = narrow_graph(coarsened.graph, precision, keeps)
    return coarsened if graph is coarsened.graph else replace(coarsened, graph=graph)


def narrow_graph(graph: Graph, precision: str, keeps: Callable[[Operator], bool]) -> Graph:
    """Returns the graph with float32 tensors in 16 bits, except those of operators in `keeps`."""
    dtype = PRECISIONS[precision]
    if dtype is None:
        return graph
    wide = {name for name, t in graph.tensors.items() if t.role in ("input", "output")}
    for op in graph.operators:
        if keeps(op) or any(stem in op.kind for stem in FULL_PRECISION):
            wide.update(op.inputs, op.outputs)
    tensors = {
        name: t if t.dtype != "float32" or name in wide else replace(t, dtype=dtype)
        for name, t in graph.tensors.items()
    }
    return Graph(graph.name, tensors, graph.operators)
