"""Takes apart sequences of tensors, as exporters write `split`, `chunk` and `unbind`."""

from __future__ import annotations

from shardwise.capture.onnx.constants import ints
from shardwise.capture.onnx.program import Node, Program


class Sequences:
    """The tensors of each sequence whose makers and positions are known."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._items: dict[str, list[str]] = {}

    def opened(self, node: Node) -> list[Node] | None:
        """Returns plain nodes to visit in place of one that makes or joins a sequence, or None."""
        if not node.is_standard:
            return None
        if node.type == "SplitToSequence":
            return self._split(node)
        if node.type == "SequenceConstruct":
            self._items[node.outputs[0]] = list(node.inputs)
            return []
        if node.type == "ConcatFromSequence" and node.input(0) in self._items:
            items = self._items[node.inputs[0]]
            if node.attributes.get("new_axis", 0):
                return None
            return [_plain(node, "Concat", items, node.outputs, axis=node.attributes["axis"])]
        return None

    def item(self, node: Node) -> str | None:
        """Returns the tensor that SequenceAt selects."""
        if node.type != "SequenceAt" or not node.is_standard or node.input(0) not in self._items:
            return None
        place = self._program.constant(node.inputs[1])
        items = self._items[node.inputs[0]]
        if place is None or not -len(items) <= int(place) < len(items):
            return None
        return items[int(place)]

    def knows(self, name: str) -> bool:
        return name in self._items

    def _split(self, node: Node) -> list[Node] | None:
        data = self._program.values[node.inputs[0]]
        given = self._program.constant(node.input(1)) if node.input(1) else None
        if data.shape is None or (node.input(1) and given is None):
            return None
        axis = node.attributes.get("axis", 0) % len(data.shape)
        extent = data.shape[axis]
        if given is not None and given.ndim:
            sizes = ints(given)
        else:
            each = 1 if given is None else int(given)
            sizes = [min(each, extent - start) for start in range(0, extent, max(each, 1))]
        if sum(sizes) != extent or min(sizes, default=0) < 1:
            return None
        out = node.outputs[0]
        parts = [f"{out}.{place}" for place in range(len(sizes))]
        nodes = [_plain(node, "Split", [node.inputs[0]], parts, axis=axis, split=sizes)]
        items = parts
        if data.dtype is not None:
            for part, size in zip(parts, sizes, strict=True):
                shape = (*data.shape[:axis], size, *data.shape[axis + 1 :])
                self._program.declared[part] = (shape, data.dtype)
        if given is None and not node.attributes.get("keepdims", 1):
            items = [f"{part}.only" for part in parts]
            if data.dtype is not None:
                shape = (*data.shape[:axis], *data.shape[axis + 1 :])
                self._program.declared |= dict.fromkeys(items, (shape, data.dtype))
            nodes += [
                _plain(node, "Squeeze", [part], [item], axes=[axis])
                for part, item in zip(parts, items, strict=True)
            ]
        self._items[out] = items
        return nodes


def _plain(
    node: Node, kind: str, inputs: list[str], outputs: list[str], **attributes: object
) -> Node:
    plain_node = Node(
        node.name, "", kind, list(inputs), list(outputs), dict(attributes), node.scope
    )
    plain_node.field = node.field
    return plain_node
