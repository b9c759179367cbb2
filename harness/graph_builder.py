"""Small graphs for tests and benchmarks, built operator by operator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shardwise.graph import Graph
from shardwise.graph.graph import Operator, Tensor

LINEAR, RELU, MUL, ADD = (
    "aten.linear.default", "aten.relu.default", "aten.mul.Tensor", "aten.add.Tensor",
)  # fmt: skip


class GraphBuilder:
    """A graph of float32 tensors that grows; the last operator's output is the graph's."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.tensors: dict[str, Tensor] = {}
        self.operators: list[Operator] = []

    def input(self, name: str, *shape: int) -> str:
        """Adds an input whose first dimension is the batch; returns its name."""
        self.tensors[name] = Tensor(name, shape, "float32", "input", 0)
        return name

    def parameter(self, name: str, *shape: int) -> str:
        """Adds a parameter; returns its name."""
        self.tensors[name] = Tensor(name, shape, "float32", "parameter")
        return name

    def operator(
        self,
        name: str,
        kind: str,
        arguments: Mapping[str, str],
        output: str,
        shape: tuple[int, ...],
        scope: str | None = None,
        **attributes: Any,
    ) -> str:
        """Adds an operator with its tensors by argument; returns the name of its output.

        The scope is by default the operator's name.
        """
        self.tensors[output] = Tensor(output, shape, "float32", "activation")
        self.operators.append(
            Operator(
                name,
                kind,
                tuple(arguments.values()),
                (output,),
                {"tensor_arguments": list(arguments), **attributes},
                name if scope is None else scope,
            )
        )
        return output

    def linear(
        self, name: str, data: str, weight: str, output: str, scope: str | None = None
    ) -> str:
        """Adds data · weightᵀ; returns the name of its output."""
        shape = (*self.tensors[data].shape[:-1], self.tensors[weight].shape[0])
        return self.operator(name, LINEAR, {"input": data, "weight": weight}, output, shape, scope)

    def relu(self, name: str, data: str, output: str, scope: str | None = None) -> str:
        """Adds max(data, 0); returns the name of its output."""
        return self.operator(name, RELU, {"self": data}, output, self.shape(data), scope)

    def both(
        self, name: str, kind: str, one: str, other: str, output: str, scope: str | None = None
    ) -> str:
        """Adds an operator of two operands with the shape of the first; returns its output."""
        return self.operator(
            name, kind, {"self": one, "other": other}, output, self.shape(one), scope
        )

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns a tensor's shape."""
        return self.tensors[name].shape

    def graph(self) -> Graph:
        """Returns the graph so far."""
        tensors = dict(self.tensors)
        for output in self.operators[-1].outputs:
            tensors[output] = replace(tensors[output], role="output")
        return Graph(self.name, tensors, tuple(self.operators))


def mlp(batch: int = 8, width: int = 32, hidden: int = 128, name: str = "mlp") -> Graph:
    """Returns two products with a ReLU between them."""
    builder = GraphBuilder(name)
    builder.input("x", batch, width)
    builder.parameter("w1", hidden, width)
    builder.linear("one", "x", "w1", "h")
    builder.relu("act", "h", "a", "")
    builder.parameter("w2", width, hidden)
    builder.linear("two", "a", "w2", "y")
    return builder.graph()


def layers(count: int, batch: int, width: int) -> Graph:
    """Returns a chain of this number of linear layers, each with a ReLU."""
    builder = GraphBuilder(f"{count} layers")
    data = builder.input("x", batch, width)
    for i in range(count):
        weight = builder.parameter(f"w{i}", width, width)
        data = builder.relu(f"act{i}", builder.linear(f"fc{i}", data, weight, f"h{i}"), f"a{i}")
    return builder.graph()
