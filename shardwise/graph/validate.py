"""What makes a graph well formed, checked by field, and its topological order."""

from __future__ import annotations

import heapq
from collections import defaultdict
from typing import get_args

from shardwise.errors import BadInput
from shardwise.graph.graph import DTYPE_BYTES, STORED_BYTES, Graph, Operator, Role, Tensor
from shardwise.graph.shapes import shape_problem

MAX_ELEMENTS = 2**48
"""Largest tensor: with 16 bytes an element, its size is still exact in a JSON number."""

MAX_DIMS = 64
_ROLES = get_args(Role)
_MADE_ROLES = ("activation", "output")
_SHOWN_CYCLE = 8


def validate_graph(graph: Graph) -> Graph:
    """Returns the same graph, checked, with its operators in topological order.

    Operators that are already in order keep it. Raises BadInput with the field.
    """
    for position, tensor in enumerate(graph.tensors.values()):
        _check_tensor(tensor, f"tensors[{position}]")
    _check_operators(graph)
    _check_production(graph)
    ordered = _topological(graph)
    result = Graph(graph.name, graph.tensors, ordered)
    for position, op in enumerate(graph.operators):
        mismatch = shape_problem(op, graph.tensors)
        if mismatch:
            raise BadInput(
                f"{op.name} ({op.kind}): {mismatch.problem}",
                field=f"operators[{position}].{mismatch.field}",
                expected=mismatch.expected,
            )
    return result


def _check_tensor(tensor: Tensor, field: str) -> None:
    if not tensor.name:
        raise BadInput("a tensor without a name", field=f"{field}.name", expected="a name")
    if tensor.dtype not in DTYPE_BYTES:
        raise BadInput(
            f"unknown dtype {tensor.dtype!r}",
            field=f"{field}.dtype",
            expected=", ".join(DTYPE_BYTES),
        )
    if tensor.role not in _ROLES:
        raise BadInput(
            f"unknown role {tensor.role!r}", field=f"{field}.role", expected=", ".join(_ROLES)
        )
    if tensor.frozen and tensor.role != "parameter":
        raise BadInput(
            f"{tensor.name!r} is frozen", field=f"{field}.frozen", expected="a parameter"
        )
    if tensor.stored is not None and (tensor.stored not in STORED_BYTES or not tensor.frozen):
        raise BadInput(
            f"{tensor.name!r} is stored as {tensor.stored!r}",
            field=f"{field}.stored",
            expected=f"a frozen parameter, in {', '.join(STORED_BYTES)}",
        )
    if len(tensor.shape) > MAX_DIMS:
        raise BadInput(
            f"{len(tensor.shape)} dimensions", field=f"{field}.shape", expected=f"≤ {MAX_DIMS}"
        )
    elements = 1
    for dim, extent in enumerate(tensor.shape):
        if extent < 1:
            raise BadInput(
                f"dimension of {extent}", field=f"{field}.shape[{dim}]", expected="at least 1"
            )
        elements *= extent
        if elements > MAX_ELEMENTS:
            raise BadInput(
                f"{tensor.name!r} has more than {MAX_ELEMENTS} elements",
                field=f"{field}.shape[{dim}]",
                expected="a tensor that could exist",
            )
    if tensor.batch_dim is not None and not 0 <= tensor.batch_dim < len(tensor.shape):
        raise BadInput(
            f"{tensor.batch_dim} is not a dimension of a tensor with {len(tensor.shape)}",
            field=f"{field}.batch_dim",
            expected=f"0 to {len(tensor.shape) - 1}, or null",
        )


def _check_operators(graph: Graph) -> None:
    if not graph.operators:
        raise BadInput("no operators", field="operators", expected="at least one operator")
    seen: set[str] = set()
    for position, op in enumerate(graph.operators):
        field = f"operators[{position}]"
        if not op.name or not op.kind:
            part = "kind" if op.name else "name"
            raise BadInput(
                f"an operator without a {part}",
                field=f"{field}.{part}",
                expected=f"a {part} that is not empty",
            )
        if op.name in seen:
            raise BadInput(
                f"two operators are called {op.name!r}",
                field=f"{field}.name",
                expected="unique names",
            )
        seen.add(op.name)
        if not op.outputs:
            raise BadInput(
                f"{op.name!r} has no outputs",
                field=f"{field}.outputs",
                expected="at least one output",
            )
        for part, names in (("inputs", op.inputs), ("outputs", op.outputs)):
            for place, name in enumerate(names):
                if name not in graph.tensors:
                    raise BadInput(
                        f"no tensor is called {name!r}",
                        field=f"{field}.{part}[{place}]",
                        expected="a name from tensors",
                    )


def _check_production(graph: Graph) -> None:
    made_by: dict[str, str] = {}
    for position, op in enumerate(graph.operators):
        for place, name in enumerate(op.outputs):
            field = f"operators[{position}].outputs[{place}]"
            role = graph.tensors[name].role
            if role not in _MADE_ROLES:
                raise BadInput(
                    f"{op.name!r} makes {name!r}, which has the role {role}",
                    field=field,
                    expected="an activation or an output",
                )
            if name in made_by:
                raise BadInput(
                    f"{name!r} is made by {made_by[name]!r} and by {op.name!r}",
                    field=field,
                    expected="one operator for each tensor",
                )
            made_by[name] = op.name
    for position, tensor in enumerate(graph.tensors.values()):
        if tensor.role in _MADE_ROLES and tensor.name not in made_by:
            raise BadInput(
                f"no operator makes the {tensor.role} {tensor.name!r}",
                field=f"tensors[{position}]",
                expected="an operator that makes it, or the role input, parameter or buffer",
            )


def _topological(graph: Graph) -> tuple[Operator, ...]:
    """Returns Kahn's order; among the ready operators the one that is first in the file."""
    position = {op.name: i for i, op in enumerate(graph.operators)}
    waiting: list[int] = []
    readers: dict[int, list[int]] = defaultdict(list)
    for i, op in enumerate(graph.operators):
        made_by = (graph.producer.get(name) for name in op.inputs)
        sources = {position[p.name] for p in made_by if p is not None}
        waiting.append(len(sources))
        for source in sources:
            readers[source].append(i)
    ready = [i for i, count in enumerate(waiting) if count == 0]
    order: list[int] = []
    while ready:
        i = heapq.heappop(ready)
        order.append(i)
        for reader in readers[i]:
            waiting[reader] -= 1
            if waiting[reader] == 0:
                heapq.heappush(ready, reader)
    if len(order) < len(graph.operators):
        raise _cycle(graph, position, {i for i, count in enumerate(waiting) if count})
    return tuple(graph.operators[i] for i in order)


def _cycle(graph: Graph, position: dict[str, int], stuck: set[int]) -> BadInput:
    """Returns the error for one cycle.

    Every stuck operator waits for a stuck one, so walking back comes round to one seen before.
    """
    path: list[int] = []
    place: dict[int, int] = {}
    at = min(stuck)
    while at not in place:
        place[at] = len(path)
        path.append(at)
        made_by = (graph.producer.get(name) for name in graph.operators[at].inputs)
        at = min(i for p in made_by if p is not None and (i := position[p.name]) in stuck)
    around = path[place[at] :][::-1]
    first = around.index(min(around))
    around = around[first:] + around[:first]
    names = [graph.operators[i].name for i in around]
    if len(names) > _SHOWN_CYCLE:
        names = [*names[:_SHOWN_CYCLE], f"… {len(names) - _SHOWN_CYCLE} more"]
    return BadInput(
        f"a cycle: {' -> '.join([*names, names[0]])}",
        field=f"operators[{min(around)}]",
        expected="an acyclic graph",
    )
