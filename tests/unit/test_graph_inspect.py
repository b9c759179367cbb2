"""inspect: sums over a graph whose operators' costs are known."""

from __future__ import annotations

import json
from collections.abc import Mapping

from shardwise.graph import Graph, Operator, Tensor
from shardwise.graph.inspect import inspect_graph
from shardwise.graph.semantics import OperatorSemantics


def graph() -> Graph:
    tensors = [
        Tensor("x", (8, 4), "bfloat16", "input", 0),
        Tensor("w", (3, 4), "bfloat16", "parameter"),
        Tensor("b", (5,), "float32", "buffer"),
        Tensor("y", (8, 3), "bfloat16", "activation"),
        Tensor("v", (24,), "bfloat16", "activation"),
        Tensor("loss", (), "float32", "output"),
    ]
    operators = (
        Operator("fc", "aten.linear.default", ("x", "w"), ("y",)),
        Operator("flat", "aten.view.default", ("y",), ("v",)),
        Operator("odd", "my.loss", ("v", "b"), ("loss",)),
    )
    return Graph("g", {t.name: t for t in tensors}, operators)


def semantics(op: Operator, tensors: Mapping[str, Tensor]) -> OperatorSemantics:
    flops = {"fc": (192.0, 384.0)}.get(op.name, (0.0, 0.0))
    return OperatorSemantics(
        variables=(),
        inputs=tuple({} for _ in op.inputs),
        outputs=tuple({} for _ in op.outputs),
        saves_inputs=tuple(op.name != "flat" and name != "b" for name in op.inputs),
        saves_outputs=tuple(op.name == "fc" for _ in op.outputs),
        forward_flops=flops[0],
        backward_flops=flops[1],
        category={"fc": "heavy", "flat": "view", "odd": "light"}[op.name],  # type: ignore[arg-type]
        described=op.name != "odd",
    )


def test_the_document_adds_up() -> None:
    document = inspect_graph(graph(), semantics)
    assert document["schema"] == "shardwise.inspect/1"
    assert document["batch_size"] == 8
    assert document["parameters"] == {
        "tensors": 1,
        "elements": 12,
        "total_bytes": 24,
        "by_dtype_bytes": {"bfloat16": 24},
    }
    assert document["buffers"]["total_bytes"] == 20
    assert document["activations"]["total_bytes"] == 48 + 48 + 4
    assert document["forward_flops"] == 192.0
    assert document["backward_flops"] == 384.0
    assert document["undescribed_operators"] == [{"name": "odd", "kind": "my.loss"}]
    assert [row["kind"] for row in document["operators"]["by_kind"]] == [
        "aten.linear.default",
        "aten.view.default",
        "my.loss",
    ]
    assert document["operators"]["by_kind"][0] == {
        "kind": "aten.linear.default",
        "count": 1,
        "forward_flops": 192.0,
        "backward_flops": 384.0,
        "output_bytes": 48,
        "described": True,
    }
    json.dumps(document, allow_nan=False)


def test_a_view_that_is_kept_is_the_tensor_it_looks_at() -> None:
    # y is kept by the linear and, as the view v, by the loss: one tensor of 48 bytes.
    assert inspect_graph(graph(), semantics)["activations"]["kept_for_backward_bytes"] == 48
