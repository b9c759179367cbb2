"""Whether a model sends tokens to experts: a mixture, told by its structure, not by names.

A product has a matrix for each expert where `expert` is a variable of its description
(docs/tdl.md), or where each matrix of a parameter meets rows of its own, and the model takes the
largest (`topk`) of as many scores as there are matrices.
"""

from __future__ import annotations

from collections.abc import Iterator

from shardwise.graph.graph import Graph
from shardwise.graph.inspect import is_product
from shardwise.sharding.coarsen import Coarsened, Group, Member

EXPERT_VARIABLE = "expert"


def has_experts(coarsened: Coarsened) -> bool:
    """Returns whether some product has a matrix for each expert, of which tokens choose some."""
    graph = coarsened.graph
    scored = {
        graph.tensors[op.inputs[0]].shape[-1]
        for op in graph.operators
        if op.kind.startswith("aten.topk") and graph.tensors[op.inputs[0]].shape
    }
    return any(
        name == EXPERT_VARIABLE or extent in scored
        for group in coarsened.groups
        for member in group.members
        if is_product(member.operator)
        for name, extent in _of_matrices(graph, group, member)
    )


def _of_matrices(graph: Graph, group: Group, member: Member) -> Iterator[tuple[str, int]]:
    """Yields name and extent of the variables of a product that number matrices of a parameter."""
    made = {name for m in group.members if m.on_parameters for name in m.operator.outputs}
    weights = [
        name in made or graph.tensors[name].role == "parameter" for name in member.operator.inputs
    ]
    sem = member.semantics
    for v, variable in enumerate(sem.variables):
        if variable.name == EXPERT_VARIABLE:
            yield variable.name, variable.extent
            continue
        in_weights = [v in access for access, is_ in zip(sem.inputs, weights, strict=True) if is_]
        in_rows = [v in access for access, is_ in zip(sem.inputs, weights, strict=True) if not is_]
        if any(in_weights) and any(in_rows) and any(v in access for access in sem.outputs):
            yield variable.name, variable.extent
