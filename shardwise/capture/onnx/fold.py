"""One walk over a program: infers shapes, computes constants, drops nodes that change nothing.

Exporters spell out shape arithmetic (Shape, Gather, Concat, Reshape), masks and positions. What
depends on constants alone and stays small is computed here; conditions that are then known choose
their branch; identities, casts to the same type and views to the same shape become another name of
their input. Nothing computed from weights is touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from shardwise.capture.onnx.constants import evaluate, slice_places
from shardwise.capture.onnx.infer import infer
from shardwise.capture.onnx.program import (
    MAX_CONSTANT_BYTES,
    OWN_DOMAIN,
    Array,
    Node,
    Program,
    Value,
    array_of,
    onnx_array_type,
    to_nodes,
)
from shardwise.capture.onnx.read import MAX_NODES
from shardwise.capture.onnx.sequences import Sequences
from shardwise.errors import CaptureError
from shardwise.graph.graph import DTYPE_BYTES

ALL_CONSTANTS_BYTES = 8 * MAX_CONSTANT_BYTES
"""How much computed constants may take together; beyond it they stay operators."""

_RANDOM = frozenset({"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike"})
_GROWING = frozenset({"Expand", "ConstantOfShape", "Range", "Tile", "Pad", "Resize"})


def fold(program: Program) -> None:
    """Reduces `program` to live nodes with inferred shapes; raises CaptureError by field."""
    walk = _Walk(program)
    walk.over(program.nodes)
    program.nodes = walk.kept
    for position, name in enumerate(program.outputs):
        program.outputs[position] = walk.resolve(name)
        if program.outputs[position] not in program.values:
            raise CaptureError(
                f"no node makes the output {name!r}", field=f"graph.output[{position}]"
            )
    program.drop_dead()


class _Walk:
    """One walk over the program; `alias` maps a name to the tensor that it stands for."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._values = program.values
        self._alias: dict[str, str] = {}
        self._bytes_left = ALL_CONSTANTS_BYTES
        self._visited = 0
        self._sequences = Sequences(program)
        self.kept: list[Node] = []

    def resolve(self, name: str) -> str:
        while name in self._alias:
            name = self._alias[name]
        return name

    def over(self, nodes: list[Node]) -> None:
        for node in nodes:
            self._visited += 1
            if self._visited > MAX_NODES:
                raise CaptureError(f"more than {MAX_NODES:,} nodes", field="graph.node")
            self._visit(node)

    def _visit(self, node: Node) -> None:
        if node.domain == OWN_DOMAIN:
            raise CaptureError(
                f"{node.domain!r} is a reserved domain", field=f"{node.field}.domain"
            )
        self._resolve_inputs(node)
        for place, name in enumerate(node.outputs):
            if name and name in self._values:
                raise CaptureError(f"{name!r} is made twice", field=f"{node.field}.output[{place}]")
        if node.type == "Constant" and node.is_standard:
            self._constant(node)
            return
        if node.type == "If" and node.is_standard and self._chosen(node):
            return
        plain = self._sequences.opened(node)
        if plain is not None:
            self.over(plain)
            return
        item = self._sequences.item(node)
        if item is not None:
            self._alias[node.outputs[0]] = item
            return
        self._with_outer_inputs(node)
        for value in infer(node, self._program):
            self._values[value.name] = value
        if self._computed(node) or self._passed_through(node):
            return
        self.kept.append(node)

    def _resolve_inputs(self, node: Node) -> None:
        for place, name in enumerate(node.inputs):
            node.inputs[place] = self.resolve(name)
            known = node.inputs[place] in self._values or self._sequences.knows(name)
            if name and not known:
                raise CaptureError(
                    f"{node.name} ({node.type}) reads {name!r}, which no earlier node makes",
                    field=f"{node.field}.input[{place}]",
                    expected="nodes in order, and every tensor in the file",
                )

    def _constant(self, node: Node) -> None:
        name = node.outputs[0]
        if "value" in node.attributes:
            array = array_of(node.attributes["value"], node.field)
        else:
            results = evaluate(node, [])
            array = results[0] if results else None
        if array is None:
            raise CaptureError(f"{node.name} (Constant) has no readable tensor", field=node.field)
        # Large float constants may be weights: some exporters write them as constants.
        value = Value(name, array.shape, array.dtype.name, "initialiser", content=array)
        value.constant = None if value.is_float and array.size > 1 else array
        self._values[name] = value

    def _chosen(self, node: Node) -> bool:
        """Inlines the branch of an If whose condition is known."""
        condition = self._program.constant(node.input(0))
        if condition is None or condition.size != 1:
            return False
        branch = node.attributes["then_branch" if condition.item() else "else_branch"]
        for position, tensor in enumerate(branch.initializer):
            array = array_of(tensor, f"{node.field}.initializer[{position}]")
            if array is None:
                return False
            self._values[tensor.name] = Value(
                tensor.name, array.shape, array.dtype.name, "initialiser", array, array
            )
        self.over(to_nodes(branch.node, f"{node.field}.branch"))
        for name, info in zip(node.outputs, branch.output, strict=False):
            self._alias[name] = self.resolve(info.name)
        return True

    def _with_outer_inputs(self, node: Node) -> None:
        """Adds to a node's inputs what its bodies read from outside."""
        for attribute in node.proto.attribute if node.proto is not None else ():
            for body in (attribute.g, *attribute.graphs):
                for name in _outer_names(body):
                    source = self.resolve(name)
                    if source in self._values and source not in node.inputs:
                        node.inputs.append(source)

    def _computed(self, node: Node) -> bool:
        """Replaces a node by its result if that is known and small."""
        if node.type in _RANDOM or not all(node.outputs):
            return False
        results: Sequence[Array] | None = self._by_type_alone(node)
        if results is None:
            inputs = [self._program.constant(name) for name in node.inputs]
            known = all(c is not None for n, c in zip(node.inputs, inputs, strict=True) if n)
            results = evaluate(node, inputs) if known and self._affordable(node, inputs) else None
        if results is None or len(results) != len(node.outputs):
            return False
        for name, array in zip(node.outputs, results, strict=True):
            value = Value(name, array.shape, array.dtype.name, "made", array, array)
            self._values[name] = value
            # A broadcast array holds one number.
            self._bytes_left -= array.nbytes if array.strides and any(array.strides) else 0
        return True

    def _by_type_alone(self, node: Node) -> list[Array] | None:
        """Computes Shape and Size from the shape alone, CastLike from its second input's type."""
        if node.type == "CastLike" and node.is_standard:
            data, like = self._program.constant(node.inputs[0]), self._values[node.inputs[1]]
            if data is None or like.dtype is None:
                return None
            return [data.astype(onnx_array_type(like.dtype))]
        shape = self._values[node.inputs[0]].shape if node.inputs and node.inputs[0] else None
        if shape is None or not node.is_standard:
            return None
        if node.type == "Shape":
            start, end = node.attributes.get("start", 0), node.attributes.get("end")
            return [np.asarray(shape[start:end], dtype=np.int64)]
        return [np.asarray(prod(shape), dtype=np.int64)] if node.type == "Size" else None

    def _affordable(self, node: Node, inputs: list[Array | None]) -> bool:
        """Returns whether the results are small, before they are made."""
        for name in node.outputs:
            value = self._values[name]
            if value.shape is None or value.dtype is None:
                # Its size is unknown in advance; it may only be about as large as its inputs.
                small = all(c.size < 4096 for c in inputs if c is not None)
                if node.type in _GROWING or not small:
                    return False
            elif value.elements * DTYPE_BYTES[value.dtype] > min(
                MAX_CONSTANT_BYTES, self._bytes_left
            ):
                return False
        return True

    def _passed_through(self, node: Node) -> bool:
        if not node.is_standard or not node.inputs or not node.inputs[0]:
            return False
        before, after = self._values[node.inputs[0]], self._values[node.outputs[0]]
        same = before.shape is not None and before.shape == after.shape
        same = same and before.dtype == after.dtype
        if not (same and _changes_nothing(node, self._program, before)):
            return node.type == "Identity" and self._rename(node)
        return self._rename(node)

    def _rename(self, node: Node) -> bool:
        self._alias[node.outputs[0]] = node.inputs[0]
        del self._values[node.outputs[0]]
        return True


_ALWAYS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Expand", "Cast", "CastLike"})


def _changes_nothing(node: Node, program: Program, data: Value) -> bool:
    """Returns whether a node whose result has its input's shape and type returns its input."""
    if node.type in _ALWAYS:
        return True
    if node.type in ("Concat", "Sum", "Mean", "Max", "Min"):
        return len(node.inputs) == 1
    if node.type == "Split":
        return len(node.outputs) == 1
    rank = len(data.shape or ())
    if node.type == "Transpose":
        return list(node.attributes.get("perm", range(rank)[::-1])) == list(range(rank))
    if node.type == "Slice":
        inputs = [program.constant(name) if name else None for name in node.inputs]
        if any(c is None for n, c in zip(node.inputs[1:], inputs[1:], strict=True) if n):
            return False
        return all(step > 0 for *_, step in slice_places(node, inputs, data.shape or ()))
    if node.type == "Dropout":
        return dropout_ratio(node, program) == 0.0 and not any(node.outputs[1:])
    return False


def dropout_ratio(node: Node, program: Program) -> float:
    """Returns the fraction that a Dropout drops; 0.5 if it does not say."""
    given: Any = node.attributes.get("ratio", 0.5)
    ratio = program.constant(node.input(1))
    if ratio is not None and ratio.size == 1:
        given = ratio.item()
    return float(given)


def _outer_names(body: Any) -> list[str]:
    """Returns names that a body reads and does not make."""
    own = {t.name for t in body.initializer} | {i.name for i in body.input}
    outer = []
    for node in body.node:
        outer += [name for name in node.input if name and name not in own]
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                outer += [name for name in _outer_names(inner) if name not in own]
        own.update(node.output)
    outer += [info.name for info in body.output if info.name not in own]
    return list(dict.fromkeys(outer))
