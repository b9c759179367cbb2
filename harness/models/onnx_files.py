"""ONNX files made node by node, and the graphs that capture makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from shardwise.capture import capture
from shardwise.graph import Graph

FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64


def tensor(name: str, *shape: int | str, kind: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def weight(name: str, *shape: int) -> Any:
    generator = np.random.default_rng(len(name))
    return numpy_helper.from_array(generator.standard_normal(shape).astype(np.float32), name)


def number(name: str, value: float) -> Any:
    return numpy_helper.from_array(np.float32(value), name)


def ints(name: str, *values: int) -> Any:
    return numpy_helper.from_array(np.asarray(values, dtype=np.int64), name)


def node(kind: str, inputs: str, outputs: str, **attributes: Any) -> Any:
    return helper.make_node(kind, inputs.split(), outputs.split(), **attributes)


def model(
    nodes: Sequence[Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    weights: Sequence[Any] = (),
    declared: Sequence[Any] = (),
    opset: int = 20,
    **more: Any,
) -> Any:
    graph = helper.make_graph(
        list(nodes), "g", list(inputs), list(outputs), list(weights), value_info=list(declared)
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.example", 1)]
    return helper.make_model(graph, opset_imports=imports, **more)


def saved(folder: Path, proto: Any) -> str:
    path = folder / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    return str(path)


def captured(folder: Path, proto: Any, **sizes: Any) -> Graph:
    return capture(saved(folder, proto), **sizes)


def kinds(graph: Graph) -> list[str]:
    return [op.kind for op in graph.operators]


def linear(batch: int | str = 4) -> Any:
    return model(
        [node("MatMul", "x w", "p"), node("Add", "p b", "y")],
        [tensor("x", batch, 8)],
        [tensor("y", batch, 16)],
        [weight("w", 8, 16), weight("b", 16)],
    )


def attention(scales: int) -> Any:
    """Scores scaled in both factors (as exporters write the operator) or in one."""
    nodes = [
        node("Mul", "q s", "qs"),
        node("Transpose", "k", "kt", perm=[0, 1, 3, 2]),
        *([node("Mul", "kt s", "kts")] if scales == 2 else []),
        node("MatMul", "qs kts" if scales == 2 else "qs kt", "p"),
        node("Add", "p m", "pm"),
        node("Softmax", "pm", "w", axis=-1),
        node("MatMul", "w v", "y"),
    ]
    heads = [tensor(n, 2, 4, 6, 8) for n in "qkv"]
    mask = tensor("m", 2, 1, 6, 6)
    return model(nodes, [*heads, mask], [tensor("y", 2, 4, 6, 8)], [number("s", 0.5)])


def recurrent() -> Any:
    """One layer, batches first, as PyTorch's exporter writes it."""
    return model(
        [
            node("Transpose", "x", "t", perm=[1, 0, 2]),
            node("LSTM", "t w r b", "h", hidden_size=4),
            node("Transpose", "h", "m", perm=[0, 2, 1, 3]),
            node("Reshape", "m size", "f"),
            node("Transpose", "f", "y", perm=[1, 0, 2]),
        ],
        [tensor("x", 2, 5, 3)],
        [tensor("y", 2, 5, 4)],
        [weight("w", 1, 16, 3), weight("r", 1, 16, 4), weight("b", 1, 32), ints("size", 5, 2, 4)],
    )


def doubling(levels: int) -> Any:
    """Functions that each call the next one twice."""
    functions = []
    for level in range(levels):
        called = f"f{level + 1}" if level < levels - 1 else "Relu"
        domain = "com.example" if level < levels - 1 else ""
        body = [
            helper.make_node(called, ["a"], ["b"], domain=domain),
            helper.make_node(called, ["b"], ["c"], domain=domain),
        ]
        imports = [helper.make_opsetid("", 20), helper.make_opsetid("com.example", 1)]
        functions.append(
            helper.make_function("com.example", f"f{level}", ["a"], ["c"], body, imports)
        )
    call = helper.make_node("f0", ["x"], ["y"], domain="com.example")
    return model([call], [tensor("x", 4)], [tensor("y", 4)], functions=functions)
