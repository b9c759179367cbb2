"""Imbalance of a mixture: the busiest device gets more rows than the mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from shardwise.graph.graph import Graph, Spread, Tensor
from shardwise.graph.semantics import OperatorSemantics
from shardwise.sharding.coarsen import Coarsened


def unbalanced(coarsened: Coarsened, imbalance: float) -> Coarsened:
    """Returns the same groups where the busiest device of a mixture has `imbalance` times the mean
    of the rows that are sent to experts; itself where none can be, or with 1."""
    tensors = coarsened.graph.tensors
    if imbalance == 1.0 or all(tensor.spread is None for tensor in tensors.values()):
        return coarsened
    graph = Graph(coarsened.graph.name, _of_tensors(tensors, imbalance), coarsened.graph.operators)
    groups = tuple(
        replace(
            group,
            members=tuple(
                replace(member, semantics=_of_operator(member.semantics, imbalance))
                for member in group.members
            ),
        )
        for group in coarsened.groups
    )
    return replace(coarsened, graph=graph, groups=groups)


def _of_tensors(tensors: Mapping[str, Tensor], imbalance: float) -> dict[str, Tensor]:
    """Returns tensors whose busiest device has `imbalance` times the mean of the rows sent."""
    return {
        name: tensor
        if tensor.spread is None
        else replace(tensor, spread=Spread(tensor.spread, imbalance))
        for name, tensor in tensors.items()
    }


def _of_operator(semantics: OperatorSemantics, imbalance: float) -> OperatorSemantics:
    """Returns an operator's semantics for such tensors: itself where no rows are sent."""
    if not any(isinstance(variable.extent, Spread) for variable in semantics.variables):
        return semantics
    variables = tuple(
        replace(variable, extent=Spread(variable.extent, imbalance))
        if isinstance(variable.extent, Spread)
        else variable
        for variable in semantics.variables
    )
    return replace(semantics, variables=variables)
