"""Where the batch runs: its dimension of every tensor, its index variable of every operator.

The batch is followed from the inputs through the accesses of the descriptions: the index
variable that runs over the batch dimension of an input is a batch variable, and so is every
dimension of an output that it indexes. A merged dimension (batch times sequence) counts, since
its shares are whole samples (`Access.granularity`); what no batch reaches (tables, masks) has none.
"""

from __future__ import annotations

from collections.abc import Mapping

from shardwise.graph.graph import Graph, Operator
from shardwise.graph.semantics import OperatorSemantics


def batch_dims(graph: Graph, semantics: Mapping[str, OperatorSemantics]) -> dict[str, int]:
    """Returns the dimension of each tensor that the batch runs along.

    Tensors without one are left out.

    `semantics` by operator name; operators without an entry pass no batch on.
    """
    dims = {
        name: t.batch_dim
        for name, t in graph.tensors.items()
        if t.role == "input" and t.batch_dim is not None
    }
    for op in graph.operators:
        if op.name not in semantics:
            continue
        sem = semantics[op.name]
        for v in batch_variables(op, sem, dims):
            for name, accesses in zip(op.outputs, sem.outputs, strict=True):
                if v in accesses:
                    dims[name] = accesses[v].dim
    return dims


def batch_variables(op: Operator, sem: OperatorSemantics, dims: Mapping[str, int]) -> set[int]:
    """Returns the operator's index variables that run along the batch of an input."""
    return {
        v
        for name, accesses in zip(op.inputs, sem.inputs, strict=True)
        if name in dims
        for v, access in accesses.items()
        if access.dim == dims[name]
    }
