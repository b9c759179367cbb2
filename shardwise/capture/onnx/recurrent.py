"""Recurrent layers: one ONNX node per layer becomes one operator for the stack.

PyTorch writes a layer as LSTM (or GRU, RNN) over [time, batch, features], its result's directions
merged by a transpose and a reshape, and, if batches come first, a transpose before and after the
stack.
"""

from __future__ import annotations

from shardwise.capture.onnx.fold import dropout_ratio
from shardwise.capture.onnx.matching import replace
from shardwise.capture.onnx.program import OWN_DOMAIN, Node, Program

TYPES = ("LSTM", "GRU", "RNN")


def fuse_recurrent(program: Program) -> None:
    """Stacks layers whose only reader is the next layer."""
    for node in list(program.nodes):
        if node.is_standard and node.type in TYPES and program.producer.get(_y(node)) is node:
            _stack(program, node)


def _y(node: Node) -> str:
    return node.outputs[0] if node.outputs else ""


def _stack(program: Program, first: Node) -> None:
    if not _plain(program, first):
        return
    layers, dropout = [first], 0.0
    merged = _merged(program, first)
    while merged is not None:
        tail, share = merged, 0.0
        reader = program.sole_consumer(tail.outputs[0])
        if reader is not None and reader.is_standard and reader.type == "Dropout":
            tail, share = reader, dropout_ratio(reader, program)
            reader = program.sole_consumer(tail.outputs[0])
        alike = reader is not None and reader.type == first.type and _plain(program, reader)
        if reader is None or not alike or reader.input(0) != tail.outputs[0]:
            break
        if reader.attributes.get("hidden_size") != first.attributes.get("hidden_size"):
            break
        if reader.attributes.get("direction") != first.attributes.get("direction"):
            break
        layers.append(reader)
        dropout = share
        merged = _merged(program, reader)
    if merged is None:
        return
    x, y, batch_first = first.input(0), merged.outputs[0], False
    before, after = program.producer.get(x), program.sole_consumer(y)
    if _swaps(before) and _swaps(after) and before is not None and after is not None:
        x, y, batch_first = before.inputs[0], after.outputs[0], True
    else:
        after = None
    inputs = [x]
    for layer in layers:
        inputs += [layer.input(place) for place in (1, 2, 3)]
    states = [layer.input(place) for layer in layers for place in (5, 6)]
    new = Node(
        first.name,
        OWN_DOMAIN,
        first.type,
        inputs,
        [y],
        {
            "num_layers": len(layers),
            "dropout": dropout,
            "bidirectional": first.attributes.get("direction") == "bidirectional",
            "batch_first": batch_first,
            "hidden_size": first.attributes["hidden_size"],
            "activations": first.attributes.get("activations", []),
            "states": [name for name in states if name],
        },
        first.scope,
        first.field,
    )
    replace(program, new, [after if after is not None else merged])


def _plain(program: Program, node: Node) -> bool:
    """Returns whether a layer has the form that PyTorch writes.

    Time comes first, and there are no peepholes, no lengths and no readers of its last states.
    """
    attributes = node.attributes
    unread = not any(program.consumers.get(name) for name in node.outputs[1:] if name)
    lengths = node.input(4)
    return (
        unread
        and not attributes.get("layout", 0)
        and "clip" not in attributes
        and not attributes.get("input_forget", 0)
        and attributes.get("direction", "forward") in ("forward", "bidirectional")
        and "hidden_size" in attributes
        and not node.input(7)
        and (not lengths or program.constant(lengths) is not None)
    )


def _merged(program: Program, layer: Node) -> Node | None:
    """Returns the node that brings [time, directions, batch, hidden] to [time, batch, features]."""
    name = _y(layer)
    shape = program.shape(name)
    if len(shape) != 4:
        return None
    time, directions, batch, hidden = shape
    for _ in range(2):
        node = program.sole_consumer(name)
        if node is None or node.type not in ("Transpose", "Reshape", "Squeeze"):
            return None
        if node.type == "Transpose" and node.attributes.get("perm") != [0, 2, 1, 3]:
            return None
        name = node.outputs[0]
        if program.shape(name) == (time, batch, directions * hidden):
            return node
    return None


def _swaps(node: Node | None) -> bool:
    return (
        node is not None and node.type == "Transpose" and node.attributes.get("perm") == [1, 0, 2]
    )
