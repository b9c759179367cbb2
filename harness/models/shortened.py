"""The shipped models with fewer layers: the same operators and sizes, and quicker searches."""

from __future__ import annotations

import re
from dataclasses import replace

from shardwise.capture import shipped_graph
from shardwise.graph import Graph, read_graph

STACKS = {"gpt2": "transformer.h", "llama-8b": "model.layers"}
"""Where a shipped model has its layers."""


def shortened(model: str, layers: int) -> Graph:
    """Returns a shipped model with its first layers alone; what follows the last reads theirs."""
    whole = read_graph(shipped_graph(model))
    own = re.compile(re.escape(STACKS[model]) + r"\.(\d+)\.")
    number = {name: int(m[1]) for name in whole.tensors if (m := own.match(name))}
    assert layers <= max(number.values()), f"{model} has no more than {layers} layers"

    def kept(name: str) -> str:
        """The same tensor of the last layer that stays."""
        if number.get(name, 0) < layers:
            return name
        assert number[name] == max(number.values()), f"{name} is read elsewhere"
        return own.sub(f"{STACKS[model]}.{layers - 1}.", name)

    operators = []
    for operator in whole.operators:
        inside = own.match(operator.name)
        if inside is None or int(inside[1]) < layers:
            operators.append(replace(operator, inputs=tuple(map(kept, operator.inputs))))
    tensors = {
        name: tensor for name, tensor in whole.tensors.items() if number.get(name, 0) < layers
    }
    return Graph(f"{whole.name}-{layers}", tensors, tuple(operators))
