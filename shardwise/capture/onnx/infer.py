"""Shapes of one node's outputs: by onnx's own inference, else as the file declares them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from shardwise.capture.onnx.program import _DTYPES, ONNX_DTYPES, Node, Program, Shape, Value
from shardwise.errors import CaptureError

_OTHERS = (RuntimeError, ValueError, TypeError)
_SMALL = 4096
"""The number of elements up to which a constant may determine an output's shape."""


def infer(node: Node, program: Program) -> list[Value]:
    """Returns the named outputs of a node; a shape is None if nothing determines it."""
    inferred = _by_schema(node, program)
    values = []
    for name in filter(None, node.outputs):
        shape, dtype = inferred.get(name, (None, None))
        declared = program.declared.get(name)
        if declared is not None:
            shape = declared[0] if shape is None else shape
            dtype = declared[1] if dtype is None else dtype
        values.append(Value(name, shape, dtype))
    return values


def _by_schema(node: Node, program: Program) -> dict[str, tuple[Shape | None, str | None]]:
    from onnx import checker, defs, helper, numpy_helper, shape_inference

    domain = "" if node.is_standard else node.domain
    version = program.opset.get(domain, program.opset.get("ai.onnx", 0) if not domain else 0)
    try:
        schema = _schema(node, version, domain)
    except defs.SchemaError:
        if not domain:
            raise CaptureError(
                f"operator set {version} of ONNX has no {node.type}",
                field=f"{node.field}.op_type",
                expected="an operator of the version that the file names",
            ) from None
        return {}
    _check(node, schema)
    types, data = {}, {}
    for name in filter(None, node.inputs):
        value = program.values[name]
        if value.dtype is None:
            return {}
        types[name] = helper.make_tensor_type_proto(ONNX_DTYPES[value.dtype], value.shape)
        if value.constant is not None and value.constant.size <= _SMALL:
            data[name] = numpy_helper.from_array(np.asarray(value.constant, order="C"), name)
    proto = _message(node)
    opset = [helper.make_opsetid(d, v) for d, v in program.opset.items()]
    try:
        inferred = shape_inference.infer_node_outputs(
            schema, proto, types, data, opset_imports=opset, ir_version=program.ir_version
        )
    except checker.ValidationError:
        # Exporters write nodes that break the type rules (a float plus a boolean mask).
        return _broadcast(node, program)
    except (shape_inference.InferenceError, *_OTHERS) as error:
        raise CaptureError(
            f"{node.name} ({node.type}): {_reason(error)}",
            field=node.field,
            expected=f"a {node.type} whose inputs and attributes fit",
        ) from None
    return {name: _read(kind.tensor_type) for name, kind in inferred.items()}


def _check(node: Node, schema: Any) -> None:
    """Refuses a node whose inputs, outputs or attributes are not those of its operator."""
    limits = (
        ("input", node.inputs[: len(node.proto.input)] if node.proto else node.inputs,
         schema.min_input, schema.max_input),
        ("output", node.outputs, schema.min_output, schema.max_output),
    )  # fmt: skip
    for part, names, least, most in limits:
        if not least <= len(names) <= most:
            raise CaptureError(
                f"{node.name} ({node.type}) has {len(names)} {part}s",
                field=f"{node.field}.{part}",
                expected=str(least) if least == most else f"{least} to {most}",
            )
    for place in range(schema.min_input):
        if not node.inputs[place]:
            raise CaptureError(
                f"{node.name} ({node.type}) lacks an input", field=f"{node.field}.input[{place}]"
            )
    if not node.outputs[0]:
        raise CaptureError(f"{node.name} has no output", field=f"{node.field}.output[0]")
    given = {a.name: int(a.type) for a in node.proto.attribute} if node.proto else {}
    for name, wanted in schema.attributes.items():
        if wanted.required and name not in node.attributes:
            raise CaptureError(f"{node.name} ({node.type}) lacks {name}", field=node.field)
        if name in given and given[name] != int(wanted.type.value):
            raise CaptureError(
                f"{node.name} ({node.type}): {name} has the wrong type",
                field=f"{node.field}.{name}",
                expected=str(wanted.type).rpartition(".")[2],
            )
    for name in given:
        if name not in schema.attributes:
            raise CaptureError(
                f"{node.type} has no attribute {name!r}",
                field=f"{node.field}.{name}",
                expected=", ".join(schema.attributes) or "none",
            )


def _reason(error: Exception) -> str:
    """Returns onnx's own words, without locations in its sources."""
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return re.sub(
        r"\[[A-Za-z]*Error\]|\(op_type:[^)]*\):?|[\w/.]+\.(?:cc|h):\d+:?", "", text
    ).strip()


_ARITHMETIC = ("Add", "Sub", "Mul", "Div")


def _broadcast(node: Node, program: Program) -> dict[str, tuple[Shape | None, str | None]]:
    """Infers arithmetic of unlike types: shapes broadcast, and the type is the float's."""
    if node.type not in _ARITHMETIC or not node.is_standard:
        return {}
    values = [program.values[name] for name in node.inputs if name]
    floats = [value.dtype for value in values if value.is_float]
    try:
        shape = np.broadcast_shapes(*(v.shape for v in values if v.shape is not None))
    except ValueError:
        return {}
    known = len(set(floats)) == 1 and all(v.shape is not None for v in values)
    return {node.outputs[0]: (shape, floats[0])} if known else {}


def _schema(node: Node, version: int, domain: str) -> Any:
    from onnx import defs

    # Nodes made here have their axes as attributes, as in an older operator set.
    older = node.proto is None and node.type in ("Split", "Squeeze")
    return defs.get_schema(node.type, 11 if older else version, domain)


def _message(node: Node) -> Any:
    from onnx import helper

    if node.proto is None:
        return helper.make_node(node.type, node.inputs, node.outputs, **node.attributes)
    del node.proto.input[:]
    node.proto.input.extend(node.inputs)
    return node.proto


def _read(kind: Any) -> tuple[Shape | None, str | None]:
    dtype = _DTYPES.get(kind.elem_type)
    if not kind.HasField("shape"):
        return None, dtype
    dims = kind.shape.dim
    if not all(d.HasField("dim_value") for d in dims):
        return None, dtype
    return tuple(int(d.dim_value) for d in dims), dtype
