"""Operators on parameters alone: transposes, slices, stacks, conversions, scaling of weights.

Such an operator computes nothing for a sample, so no split of samples reaches it. Its readers are
what computes with the parameter: it belongs to their group (`coarsen.py`, rule 1), and along an
axis that splits a variable which it does not have, it runs whole on every rank and its gradients
are terms of a sum, as those of a parameter that is read directly. That is exact: backward of every
operator is linear in the gradient of what it made.
"""

from __future__ import annotations

from collections.abc import Callable

from shardwise.graph.graph import Graph, Operator
from shardwise.graph.semantics import OperatorSemantics


def operators_on_parameters(
    graph: Graph, semantics_of: Callable[[Operator], OperatorSemantics]
) -> dict[str, frozenset[str]]:
    """Returns by tensor the parameters that it is made of: of every output of these operators.

    Each reads parameters, what such operators made of them, and otherwise constants alone; each of
    its variables is one of a parameter's, and it makes no more than it reads. (An expansion of a
    parameter to all samples and a look-up of positions in a table have work of their own.)
    """
    made_of: dict[str, frozenset[str]] = {}
    varying = {name for name, t in graph.tensors.items() if t.role in ("input", "parameter")}
    for op in graph.operators:
        if not any(name in varying for name in op.inputs):
            continue
        varying.update(op.outputs)
        ports = [
            port
            for port, name in enumerate(op.inputs)
            if name in made_of or graph.tensors[name].role == "parameter"
        ]
        if not ports or any(
            name in varying for port, name in enumerate(op.inputs) if port not in ports
        ):
            continue
        semantics = semantics_of(op)
        of_parameters = {v for port in ports for v in semantics.inputs[port]}
        read = sum(graph.tensors[op.inputs[port]].elements for port in ports)
        makes_no_more = sum(graph.tensors[name].elements for name in op.outputs) <= read
        if makes_no_more and of_parameters.issuperset(range(len(semantics.variables))):
            sources = (made_of.get(op.inputs[p], frozenset({op.inputs[p]})) for p in ports)
            made = frozenset[str]().union(*sources)
            made_of.update(dict.fromkeys(op.outputs, made))
    return made_of
