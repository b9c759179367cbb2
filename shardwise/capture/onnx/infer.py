"""Shapes of one node's outputs: by onnx's own inference, else as the file declares them."""

from __future__ import annotations

import numpy as np

from shardwise.capture.onnx.program import _DTYPES, ONNX_DTYPES, Node, Program, Shape, Value
from shardwise.errors import CaptureError

_SMALL = 4096
"""Elements of a constant that may say what shape an output has."""


def infer(node: Node, program: Program) -> list[Value]:
    """The named outputs of a node; a shape is None where nothing tells it."""
    found = _by_schema(node, program)
    values = []
    for name in filter(None, node.outputs):
        shape, dtype = found.get(name, (None, None))
        declared = program.declared.get(name)
        if declared is not None:
            shape = declared[0] if shape is None else shape
            dtype = declared[1] if dtype is None else dtype
        values.append(Value(name, shape, dtype))
    return values


def _by_schema(node: Node, program: Program) -> dict[str, tuple[Shape | None, str | None]]:
    from onnx import defs, helper, numpy_helper, shape_inference

    domain = "" if node.is_standard else node.domain
    version = program.opset.get(domain, program.opset.get("ai.onnx", 0) if not domain else 0)
    try:
        schema = defs.get_schema(node.type, version, domain)
    except defs.SchemaError:
        if not domain:
            raise CaptureError(
                f"operator set {version} of ONNX has no {node.type}",
                field=f"{node.field}.op_type",
                expected="an operator of the version that the file names",
            ) from None
        return {}
    types, data = {}, {}
    for name in filter(None, node.inputs):
        value = program.values[name]
        if value.dtype is None:
            return {}
        types[name] = helper.make_tensor_type_proto(ONNX_DTYPES[value.dtype], value.shape)
        if value.constant is not None and value.constant.size <= _SMALL:
            data[name] = numpy_helper.from_array(np.asarray(value.constant, order="C"), name)
    proto = node.proto
    del proto.input[:]
    proto.input.extend(node.inputs[: len(node.inputs)])
    opset = [helper.make_opsetid(d, v) for d, v in program.opset.items()]
    try:
        inferred = shape_inference.infer_node_outputs(
            schema, proto, types, data, opset_imports=opset, ir_version=program.ir_version
        )
    except (shape_inference.InferenceError, RuntimeError, ValueError, TypeError):
        # Exporters write nodes that break the rules of types; their own shapes are then taken.
        return {}
    return {name: _read(kind.tensor_type) for name, kind in inferred.items()}


def _read(kind: object) -> tuple[Shape | None, str | None]:
    dtype = _DTYPES.get(kind.elem_type)  # type: ignore[attr-defined]
    if not kind.HasField("shape"):  # type: ignore[attr-defined]
        return None, dtype
    dims = kind.shape.dim  # type: ignore[attr-defined]
    if not all(d.HasField("dim_value") for d in dims):
        return None, dtype
    return tuple(int(d.dim_value) for d in dims), dtype
