"""Orders of a graph's operators: one of forward, one of backward.

Every order has producers before their readers in forward and after them in backward. Operators that
update the same buffer keep the graph's order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from shardwise.errors import BadInput
from shardwise.graph.graph import Graph, Operator

UPDATES_BUFFERS = ("batch_norm", "instance_norm")
"""Parts of the kinds of operators that write their buffers: running statistics."""


@dataclass(frozen=True)
class OperatorOrder:
    """The names of a graph's operators as forward runs them, and as backward does.

    `backward` has those that have a backward.
    """

    forward: tuple[str, ...]
    backward: tuple[str, ...]

    @classmethod
    def of_graph(cls, graph: Graph, with_backward: Collection[str]) -> OperatorOrder:
        """Returns the order in which a framework runs a graph: backward is forward reversed."""
        names = tuple(op.name for op in graph.operators)
        return cls(names, tuple(name for name in reversed(names) if name in with_backward))


def written_ports(op: Operator, graph: Graph) -> tuple[int, ...]:
    """Returns the ports whose buffers the operator updates: running statistics."""
    if not any(part in op.kind for part in UPDATES_BUFFERS):
        return ()
    return tuple(p for p, n in enumerate(op.inputs) if graph.tensors[n].role == "buffer")


def pairs(graph: Graph) -> Iterator[tuple[str, str]]:
    """Yields operators of which the first must run before the second in any forward pass."""
    touched: dict[str, str] = {}
    for op in graph.operators:
        for name in op.inputs:
            producer = graph.producer.get(name)
            if producer is not None:
                yield producer.name, op.name
        for port in written_ports(op, graph):
            buffer = op.inputs[port]
            if buffer in touched:
                yield touched[buffer], op.name
            touched[buffer] = op.name


def require_order(order: OperatorOrder, graph: Graph, *, file: str | None = None) -> None:
    """Raises `BadInput` unless a graph can be run in this order."""
    forward = _positions(order.forward, "order", file)
    backward = _positions(order.backward, "schedule.backward", file)
    names = {op.name for op in graph.operators}
    for field, given in (("order", forward), ("schedule.backward", backward)):
        unknown = next((name for name in given if name not in names), None)
        if unknown is not None:
            raise BadInput(f"names {unknown!r}", file=file, field=field, expected="an operator")
    missing = next((name for name in names if name not in forward), None)
    if missing is not None:
        raise BadInput(
            f"lacks operator {missing!r}", file=file, field="order", expected="all operators"
        )
    for first, second in pairs(graph):
        if forward[first] > forward[second]:
            raise BadInput(
                f"has {second!r} before {first!r}, which it needs",
                file=file,
                field="order",
                expected="what an operator reads before it",
            )
    for op in graph.operators:
        for name in op.inputs:
            producer = graph.producer.get(name)
            if producer is None or op.name not in backward or producer.name not in backward:
                continue
            if backward[producer.name] < backward[op.name]:
                raise BadInput(
                    f"has {producer.name!r} before {op.name!r}, which makes its gradient",
                    file=file,
                    field="schedule.backward",
                    expected="an operator after all that read what it makes",
                )


def _positions(names: Sequence[str], field: str, file: str | None) -> dict[str, int]:
    positions = {name: number for number, name in enumerate(names)}
    if len(positions) != len(names):
        twice = next(name for number, name in enumerate(names) if positions[name] != number)
        raise BadInput(f"has {twice!r} twice", file=file, field=field, expected="each once")
    return positions
