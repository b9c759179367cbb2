"""Small questions that the fusion of nodes asks about a program."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from shardwise.capture.onnx.constants import evaluate
from shardwise.capture.onnx.program import MAX_CONSTANT_BYTES, Array, Node, Program
from shardwise.graph.graph import DTYPE_BYTES


def made_by(program: Program, name: str, *types: str) -> Node | None:
    """Returns the standard node of one of `types` that makes a tensor, or None."""
    node = program.producer.get(name)
    return node if node is not None and node.is_standard and node.type in types else None


def number(program: Program, name: str) -> float | None:
    """Returns the one number that a constant holds, or None."""
    array = program.constant(name)
    if array is None or array.size == 0 or array.dtype.kind in "cOSU":
        return None
    first = array.reshape(-1)[0]
    if array.size > 1 and not bool(np.all(array == first)):
        return None
    return float(first)


def scaled(program: Program, name: str) -> tuple[str, float]:
    """Returns (x, s) if a tensor is x · s or x / s for a number; else itself and 1."""
    node = made_by(program, name, "Mul", "Div")
    if node is None:
        return name, 1.0
    left, right = node.inputs
    if (factor := number(program, right)) is not None and factor:
        return left, factor if node.type == "Mul" else 1.0 / factor
    if node.type == "Mul" and (factor := number(program, left)) is not None:
        return right, factor
    return name, 1.0


def other_input(node: Node, name: str) -> str | None:
    """Returns the other input of a node with two inputs."""
    if len(node.inputs) != 2 or name not in node.inputs:
        return None
    return node.inputs[1 - node.inputs.index(name)]


def replace(program: Program, new: Node, old: Iterable[Node]) -> None:
    """Puts `new` where the last of `old` was; removes what nothing reads any more."""
    gone = {id(node) for node in old}
    last = max(i for i, node in enumerate(program.nodes) if id(node) in gone)
    program.nodes[last] = new
    program.nodes = [node for node in program.nodes if id(node) not in gone]
    program.drop_dead()


def peek(program: Program, name: str, depth: int = 8) -> Array | None:
    """Returns what a tensor holds, from initialisers too; None if unknown."""
    value = program.values[name]
    if value.constant is not None or value.content is not None:
        return value.constant if value.constant is not None else value.content
    node = program.producer.get(name)
    size = value.elements * DTYPE_BYTES.get(value.dtype or "", 8)
    if node is None or depth == 0 or size > MAX_CONSTANT_BYTES or value.shape is None:
        return None
    inputs = [peek(program, i, depth - 1) if i else None for i in node.inputs]
    if any(array is None for array, i in zip(inputs, node.inputs, strict=True) if i):
        return None
    outputs = evaluate(node, inputs)
    return outputs[node.outputs.index(name)] if outputs is not None else None


def close(a: float, b: float) -> bool:
    """Returns whether two numbers are equal up to the rounding of a half-precision constant."""
    return abs(a - b) <= 4e-3 * max(abs(a), abs(b), 1e-12)
