"""Recurrent layers as PyTorch's operator for a stack of them.

ONNX packs a layer's weights: [directions, gates · hidden, …], its gates in an order other than
PyTorch's, both biases in one vector. Only sizes matter here: if the packed tensor was put together
from PyTorch's own weights, those are used; otherwise each direction's part is a parameter of its
own.
"""

from __future__ import annotations

from shardwise.capture.onnx.builder import Argument, Builder, NotTranslated
from shardwise.capture.onnx.program import Node, Program
from shardwise.capture.onnx.rules.rule import Rule

_KINDS = {"LSTM": "lstm.input", "GRU": "gru.input"}
_MOVED = frozenset({"Slice", "Concat", "Unsqueeze", "Squeeze", "Reshape", "Transpose", "Split"})


def _stack(b: Builder, n: Node) -> None:
    """Emits a stack made by fusion: x, then (weight, recurrent weight, bias) of each layer."""
    kind = _KINDS.get(n.type, "")
    if n.type == "RNN":
        named = {a.lower() for a in n.attributes["activations"]} or {"tanh"}
        if named not in ({"tanh"}, {"relu"}):
            raise NotTranslated("a recurrent layer of mixed activations")
        kind = f"rnn_{named.pop()}.input"
    x, *packed = n.inputs
    hidden = n.attributes["hidden_size"]
    directions = 2 if n.attributes["bidirectional"] else 1
    layers = n.attributes["num_layers"]
    biased = [bool(name) for name in packed[2::3]]
    if any(biased) != all(biased):
        raise NotTranslated("layers with and without bias")
    parameters: list[str] = []
    for layer in range(layers):
        weight, recurrent, bias = packed[3 * layer : 3 * layer + 3]
        parts = [
            _parts(b, weight, 1, directions),
            _parts(b, recurrent, 1, directions),
            _parts(b, bias, 2, directions) if bias else [],
        ]
        each = [len(p) // directions for p in parts]
        for direction in range(directions):
            for names, count in zip(parts, each, strict=True):
                parameters += names[direction * count : (direction + 1) * count]
    batch = b.shape(x)[0 if n.attributes["batch_first"] else 1]
    states = []
    for _ in range(2 if n.type == "LSTM" else 1):
        state = b.temporary((layers * directions, batch, hidden), b.dtype(x))
        size = {"size": list(b.shape(state)), "dtype": None}
        b.emit("aten.zeros.default", [], size, [state], n)
        states.append(state)
    single = n.type != "LSTM"
    given: list[Argument] = [("input", x)]
    given += [("hx" if single else f"hx.{place}", s) for place, s in enumerate(states)]
    given += [(f"params.{place}", name) for place, name in enumerate(parameters)]
    extra = [b.temporary(b.shape(s), b.dtype(x)) for s in states]
    attributes = {
        "has_biases": all(biased),
        "num_layers": layers,
        "dropout": n.attributes["dropout"],
        "train": True,
        "bidirectional": directions == 2,
        "batch_first": n.attributes["batch_first"],
    }
    b.emit(f"aten.{kind}", given, attributes, [n.outputs[0], *extra], n)


def _parts(b: Builder, packed: str, per_direction: int, directions: int) -> list[str]:
    """Returns the parameters of a packed tensor, ordered by direction."""
    origins = sources(b.program, packed)
    elements = b.program.values[packed].elements
    whole = sum(b.program.values[s].elements for s in origins) == elements
    fitting = len(origins) == per_direction * directions and all(b.is_weight(s) for s in origins)
    if whole and fitting and origins != [packed]:
        return origins
    if not b.is_weight(packed):
        raise NotTranslated("recurrent weights that are computed")
    shape = b.shape(packed)[1:]
    rows = shape[0] // per_direction
    names = []
    for place in range(directions * per_direction):
        name = f"{packed}.{place}" if directions * per_direction > 1 else packed
        names.append(b.store(name, (rows, *shape[1:]), packed))
    return names


def sources(program: Program, name: str) -> list[str]:
    """Returns the tensors that a tensor was put together from, each once, in order."""
    node = program.producer.get(name)
    if node is None:
        return [name]
    if not node.is_standard or node.type not in _MOVED:
        return []
    read = node.inputs if node.type == "Concat" else node.inputs[:1]
    origins: list[str] = []
    for item in read:
        parts = sources(program, item)
        if not parts:
            return []
        origins += parts
    return list(dict.fromkeys(origins))


def _layer(b: Builder, n: Node) -> None:
    raise NotTranslated("a recurrent layer with lengths, peepholes or visible states")


FUSED: dict[str, Rule] = {
    "LSTM": Rule(_stack, "aten.lstm.input"),
    "GRU": Rule(_stack, "aten.gru.input"),
    "RNN": Rule(_stack, "aten.rnn_tanh.input, aten.rnn_relu.input"),
}

RULES: dict[str, Rule] = {
    "LSTM": Rule(_layer, "aten.lstm.input (whole stacks)"),
    "GRU": Rule(_layer, "aten.gru.input (whole stacks)"),
    "RNN": Rule(_layer, "aten.rnn_tanh.input, aten.rnn_relu.input (whole stacks)"),
}
