"""Small models whose frontiers are exact at once, and what tests of comparisons share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardwise.answers import Options
from shardwise.graph import Graph, Operator, Tensor
from shardwise.hardware import Hardware, load_hardware
from shardwise.peers import Point
from shardwise.search.search import Search, Subject, search

BATCH, MODEL, HIDDEN = 64, 512, 2048
SLACK = 1e-9
"""Sums in another order differ in the last digits."""


def hardware(per_node: int) -> Hardware:
    """Returns V100 nodes of the given number of devices."""
    return load_hardware("dgx-v100-16gb").with_devices_per_node(per_node)


def residual_block(batch: int = BATCH, model: int = MODEL, hidden: int = HIDDEN) -> Graph:
    """e = a + relu(a W₁ᵀ) W₂ᵀ with a = x · s, then a head f = e W₃ᵀ of its own width."""
    shapes = {
        "x": ((batch, model), "input"),
        "s": ((model,), "parameter"),
        "a": ((batch, model), "activation"),
        "w1": ((hidden, model), "parameter"),
        "b": ((batch, hidden), "activation"),
        "c": ((batch, hidden), "activation"),
        "w2": ((model, hidden), "parameter"),
        "d": ((batch, model), "activation"),
        "e": ((batch, model), "activation"),
        "w3": ((3 * model, model), "parameter"),
        "f": ((batch, 3 * model), "output"),
    }
    tensors = {
        name: Tensor(name, shape, "float32", role, 0 if role == "input" else None)
        for name, (shape, role) in shapes.items()
    }
    two, linear, one = (
        {"tensor_arguments": ["self", "other"]},
        {"tensor_arguments": ["input", "weight"]},
        {"tensor_arguments": ["self"]},
    )
    operators = (
        Operator("scale", "aten.mul.Tensor", ("x", "s"), ("a",), two, "scale"),
        Operator("up", "aten.linear.default", ("a", "w1"), ("b",), linear, "up"),
        Operator("relu", "aten.relu.default", ("b",), ("c",), one, "relu"),
        Operator("down", "aten.linear.default", ("c", "w2"), ("d",), linear, "down"),
        Operator("add", "aten.add.Tensor", ("d", "a"), ("e",), two, "add"),
        Operator("head", "aten.linear.default", ("e", "w3"), ("f",), linear, "head"),
    )
    return Graph("residual", tensors, operators)


def gram(batch: int = 8, length: int = 64, model: int = 32) -> Graph:
    """y = a aᵀ for every sample, a = x · s: both dimensions of y are the length."""
    shapes = {
        "x": ((batch, length, model), "input"),
        "s": ((model,), "parameter"),
        "a": ((batch, length, model), "activation"),
        "t": ((batch, model, length), "activation"),
        "y": ((batch, length, length), "output"),
    }
    tensors = {
        name: Tensor(name, shape, "float32", role, 0 if role == "input" else None)
        for name, (shape, role) in shapes.items()
    }
    operators = (
        Operator(
            "scale",
            "aten.mul.Tensor",
            ("x", "s"),
            ("a",),
            {"tensor_arguments": ["self", "other"]},
            "scale",
        ),
        Operator(
            "turn",
            "aten.transpose.int",
            ("a",),
            ("t",),
            {"tensor_arguments": ["self"], "dim0": 1, "dim1": 2},
            "turn",
        ),
        Operator(
            "product",
            "aten.bmm.default",
            ("a", "t"),
            ("y",),
            {"tensor_arguments": ["self", "mat2"]},
            "product",
        ),
    )
    return Graph("gram", tensors, operators)


def splits(epsilon: float) -> Options:
    """Returns the options of the space of splits alone, searched to this error."""
    return Options(overlap=False, epsilon=epsilon, zero=(0,), recompute="never")


def solved(graph: Graph, machine: Hardware, gpus: int, options: Options | None = None) -> Search:
    """Returns our exact frontier of splits unless the options say otherwise."""
    return search(Subject.of(graph), machine, gpus, options or splits(0.0))


@dataclass(frozen=True)
class Coverage:
    """Tells whether our frontier has, for a peer's point, one that is no worse in both costs."""

    memory_bytes: np.ndarray[tuple[int], np.dtype[np.float64]]
    time_s: np.ndarray[tuple[int], np.dtype[np.float64]]
    epsilon: float

    @classmethod
    def by(cls, result: Search) -> Coverage:
        return cls(result.memory_bytes, result.time_s, float(result.solution.epsilon))

    def of(self, point: Point) -> bool:
        factor = (1.0 + self.epsilon) * (1.0 + SLACK)
        within = self.memory_bytes <= point.memory_bytes * factor
        return bool((within & (self.time_s <= point.time_s * factor)).any())

    def of_all(self, points: Sequence[Point]) -> bool:
        return all(self.of(point) for point in points)
