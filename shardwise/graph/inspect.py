"""What a graph holds: its operators, parameters, activations and flops, and what is unknown."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from shardwise.graph.document import graph_id
from shardwise.graph.graph import Graph, Operator, Tensor
from shardwise.graph.semantics import OperatorSemantics
from shardwise.graph.step import step_of

SCHEMA = "shardwise.inspect/1"
Analyse = Callable[[Operator, Mapping[str, Tensor]], OperatorSemantics]
_MATRIX = frozenset(
    (
        *("linear", "mm", "bmm", "addmm", "addbmm", "baddbmm", "matmul", "mv", "dot", "einsum"),
        *("conv1d", "conv2d", "conv3d", "convolution"),
        *("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
        *("scaled_dot_product_attention", "sink_attention"),
        *("expert_linear", "_grouped_mm", "grouped_mm_fallback"),
        *("Conv", "ConvTranspose", "Gemm", "MatMul", "Einsum"),
    )
)
"""Products, convolutions and attention, by the name between namespace and overload."""


def inspect_graph(graph: Graph, analyse: Analyse) -> dict[str, Any]:
    """Returns a `shardwise.inspect/1` document.

    Sizes are in bytes, flops of one whole iteration (multiply and add are two), all summed over
    the whole graph as if on one device. `kept_for_backward_bytes` counts each activation that
    some gradient needs once, and a view as the tensor that it looks at. Operators without a
    description have no flops and are listed in `undescribed_operators`. `matrix_flops` are the
    forward flops of products, convolutions and attention alone, with causal attention counted
    whole: what `torch.utils.flop_counter` counts. `seq`, `dtype` and `loss` are those of `step_of`,
    null where the graph does not say. `analyse` gives an operator's semantics, usually
    `shardwise.tdl.registry.analyse`.
    """
    semantics = {op.name: analyse(op, graph.tensors) for op in graph.operators}
    tensors = graph.tensors.values()
    activations = [t for t in tensors if t.role in ("activation", "output")]
    step = step_of(graph)
    return {
        "schema": SCHEMA,
        "name": graph.name,
        "graph": graph_id(graph),
        "batch_size": graph.batch_size,
        "seq": step.seq,
        "dtype": step.dtype,
        "loss": step.loss,
        "operators": {"count": len(graph.operators), "by_kind": _by_kind(graph, semantics)},
        "inputs": [_tensor(t) for t in tensors if t.role == "input"],
        "parameters": _total([t for t in tensors if t.role == "parameter"]),
        "buffers": _total([t for t in tensors if t.role == "buffer"]),
        "activations": {
            **_total(activations),
            "kept_for_backward_bytes": sum(
                graph.tensors[name].size_bytes for name in kept_tensors(graph, semantics)
            ),
        },
        "forward_flops": sum(s.forward_flops for s in semantics.values()),
        "backward_flops": sum(s.backward_flops for s in semantics.values()),
        "matrix_flops": sum(matrix_flops(op, semantics[op.name]) for op in graph.operators),
        "undescribed_operators": [
            {"name": op.name, "kind": op.kind}
            for op in graph.operators
            if not semantics[op.name].described
        ],
    }


def _by_kind(graph: Graph, semantics: Mapping[str, OperatorSemantics]) -> list[dict[str, Any]]:
    """Returns one row for each kind, the heaviest first."""
    rows: dict[str, dict[str, Any]] = {}
    for op in graph.operators:
        sem = semantics[op.name]
        row = rows.setdefault(
            op.kind,
            {
                "kind": op.kind,
                "count": 0,
                "forward_flops": 0.0,
                "backward_flops": 0.0,
                "output_bytes": 0,
                "described": True,
            },
        )
        row["count"] += 1
        row["forward_flops"] += sem.forward_flops
        row["backward_flops"] += sem.backward_flops
        row["output_bytes"] += sum(graph.tensors[name].size_bytes for name in op.outputs)
        row["described"] = row["described"] and sem.described
    return sorted(rows.values(), key=lambda r: (-r["forward_flops"], -r["count"], r["kind"]))


def is_product(op: Operator) -> bool:
    """Returns whether an operator is a product, a convolution or attention."""
    return op.kind.partition(".")[2].partition(".")[0] in _MATRIX


def matrix_flops(op: Operator, sem: OperatorSemantics) -> float:
    """Returns the forward flops of a product, a convolution or attention; of all others 0."""
    if not is_product(op):
        return 0.0
    # Descriptions count the half of causal scores that attention kernels compute.
    return sem.forward_flops * (2 if op.attributes.get("is_causal") else 1)


def kept_tensors(graph: Graph, semantics: Mapping[str, OperatorSemantics]) -> frozenset[str]:
    """Returns the activations that some gradient needs.

    A view counts as the tensor that it looks at.
    """
    looks_at: dict[str, str] = {}
    kept: set[str] = set()
    for op in graph.operators:
        sem = semantics[op.name]
        if sem.category == "view" and op.inputs:
            source = looks_at.get(op.inputs[0], op.inputs[0])
            looks_at.update(dict.fromkeys(op.outputs, source))
        for names, saved in ((op.inputs, sem.saves_inputs), (op.outputs, sem.saves_outputs)):
            kept.update(name for name, is_saved in zip(names, saved, strict=True) if is_saved)
    stored = {looks_at.get(name, name) for name in kept}
    return frozenset(n for n in stored if graph.tensors[n].role in ("activation", "output"))


def _total(tensors: list[Tensor]) -> dict[str, Any]:
    by_dtype: dict[str, int] = defaultdict(int)
    for tensor in tensors:
        by_dtype[tensor.dtype] += tensor.size_bytes
    return {
        "tensors": len(tensors),
        "elements": sum(t.elements for t in tensors),
        "total_bytes": sum(t.size_bytes for t in tensors),
        "by_dtype_bytes": dict(sorted(by_dtype.items())),
    }


def _tensor(tensor: Tensor) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "shape": list(tensor.shape),
        "dtype": tensor.dtype,
        "batch_dim": tensor.batch_dim,
    }
