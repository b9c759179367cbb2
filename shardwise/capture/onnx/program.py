"""The graph of an ONNX file in plain types; protobuf only in each node's own message."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from shardwise.capture.onnx.sizes import Sizes
from shardwise.errors import CaptureError
from shardwise.graph.graph import DTYPE_BYTES, FLOAT_DTYPES

Array = NDArray[Any]
Shape = tuple[int, ...]
Origin = Literal["input", "initialiser", "made"]

OWN_DOMAIN = "shardwise"
"""Domain of the nodes that fusion makes; files cannot use it."""

MAX_CONSTANT_BYTES = 64 * 2**20
"""Largest constant that is evaluated or inspected."""

_DTYPES = {
    1: "float32",
    2: "uint8",
    3: "int8",
    5: "int16",
    6: "int32",
    7: "int64",
    9: "bool",
    10: "float16",
    11: "float64",
    14: "complex64",
    15: "complex128",
    16: "bfloat16",
    17: "float8_e4m3fn",
    19: "float8_e5m2",
}
ONNX_DTYPES = {name: number for number, name in _DTYPES.items()}


@dataclass
class Value:
    """One tensor of the file.

    `constant` is its content if that is known and may be computed with; `content` if it may only be
    inspected (an initialiser that might be a weight); `elsewhere` says that it is in another file.
    `shape` and `dtype` are None until they are known.
    """

    name: str
    shape: Shape | None
    dtype: str | None
    origin: Origin = "made"
    constant: Array | None = None
    content: Array | None = None
    elsewhere: bool = False

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOAT_DTYPES

    @property
    def elements(self) -> int:
        return prod(self.shape or ())


@dataclass
class Node:
    """One operator; absent optional inputs are empty names.

    `field` is its location in the file; `origin` is the operator of the exported program that it
    was written for, if the exporter says.
    """

    name: str
    domain: str
    type: str
    inputs: list[str]
    outputs: list[str]
    attributes: dict[str, Any] = field(default_factory=dict)
    scope: str = ""
    field: str = ""
    proto: Any = None
    origin: str = ""

    def input(self, position: int) -> str:
        """Returns the name at a position, empty if there is none."""
        return self.inputs[position] if position < len(self.inputs) else ""

    @property
    def is_standard(self) -> bool:
        return self.domain in ("", "ai.onnx")


@dataclass
class Program:
    """The file: `exporter_roles` is what the exporter says about its initialisers, if anything."""

    nodes: list[Node]
    values: dict[str, Value]
    inputs: list[str]
    outputs: list[str]
    opset: dict[str, int]
    ir_version: int
    exporter_roles: dict[str, Literal["parameter", "buffer"]]
    declared: dict[str, tuple[Shape, str]]
    consumers: dict[str, list[Node]] = field(default_factory=dict)
    producer: dict[str, Node] = field(default_factory=dict)

    def shape(self, name: str) -> Shape:
        shape = self.values[name].shape
        if shape is None:
            node = self.producer.get(name)
            for source in node.inputs if node is not None else ():
                if source and self.values[source].elsewhere:
                    raise CaptureError(
                        f"its shape depends on {source!r}, which is in external data that is "
                        "not read",
                        field=f"graph.value_info {name}",
                        expected="integers inside the file",
                    )
            raise CaptureError(
                f"the shape of {name!r} is unknown",
                field=f"graph.value_info {name}",
                expected="a file with static shapes, or with those of its unusual operators",
            )
        return shape

    def constant(self, name: str) -> Array | None:
        return self.values[name].constant if name else None

    def link(self) -> None:
        """Updates `producer` and `consumers` to match `nodes`."""
        self.producer = {out: node for node in self.nodes for out in node.outputs if out}
        self.consumers = {name: [] for name in self.values}
        for node in self.nodes:
            for name in dict.fromkeys(filter(None, node.inputs)):
                self.consumers[name].append(node)

    def drop_dead(self) -> None:
        """Removes nodes that no output needs, and updates the links."""
        needed = set(self.outputs)
        kept = []
        for node in reversed(self.nodes):
            if any(name in needed for name in node.outputs):
                needed.update(node.inputs)
                kept.append(node)
        self.nodes = kept[::-1]
        self.link()

    def sole_consumer(self, name: str) -> Node | None:
        """Returns the only reader of a tensor that is not an output of the file."""
        readers = self.consumers[name]
        return readers[0] if len(readers) == 1 and name not in self.outputs else None


def load_program(model: Any, sizes: Sizes) -> Program:
    """Parses a ModelProto and binds its open dimensions; raises CaptureError by field."""
    graph = model.graph
    signature = _signature(graph)
    values: dict[str, Value] = {}
    for position, tensor in enumerate(graph.initializer):
        _text(f"graph.initializer[{position}]", tensor.name)
        values[tensor.name] = _initialiser(tensor, signature, f"graph.initializer[{position}]")
    if graph.sparse_initializer:
        raise CaptureError("sparse weights cannot be captured", field="graph.sparse_initializer")
    given = {
        info.name: _open_shape(info, f"graph.input[{position}]")
        for position, info in enumerate(graph.input)
        if info.name not in values
    }
    for position, info in enumerate((*graph.input, *graph.output)):
        _text(f"graph.input or output [{position}]", info.name)
    for entry in model.opset_import:
        _text("opset_import", entry.domain)
    bound = sizes.bind({name: shape for name, (shape, _) in given.items()})
    for name, (shape, dtype) in given.items():
        fixed = tuple(bound[d] if isinstance(d, str) else d for d in shape)
        values[name] = Value(name, fixed, dtype, "input")
    return Program(
        nodes=to_nodes(graph.node, "graph.node"),
        values=values,
        inputs=list(given),
        outputs=[info.name for info in graph.output],
        opset={entry.domain: entry.version for entry in model.opset_import},
        ir_version=model.ir_version,
        exporter_roles=signature,
        declared=_declared(graph, bound),
    )


def to_nodes(protos: Iterable[Any], field: str) -> list[Node]:
    """Converts NodeProtos to nodes."""
    listed = list(protos)
    for position, proto in enumerate(listed):
        names = (*proto.input, *proto.output, *(a.name for a in proto.attribute))
        _text(f"{field}[{position}]", proto.name, proto.domain, proto.op_type, *names)
    return [
        Node(
            name=proto.name or f"{proto.op_type}_{position}",
            domain=proto.domain,
            type=proto.op_type,
            inputs=list(proto.input),
            outputs=list(proto.output),
            attributes={a.name: _attribute(a, f"{field}[{position}]") for a in proto.attribute},
            scope=_scope(proto),
            origin=_scopes(proto)[-1] if _scopes(proto) else "",
            field=f"{field}[{position}]",
            proto=proto,
        )
        for position, proto in enumerate(listed)
    ]


def array_of(tensor: Any, field: str) -> Array | None:
    """Returns the content of a TensorProto; None if it is external or too large to inspect."""
    import onnx
    from onnx import numpy_helper

    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return None
    dtype = _DTYPES.get(tensor.data_type)
    if dtype is None or prod(tensor.dims) * DTYPE_BYTES[dtype] > MAX_CONSTANT_BYTES:
        return None
    try:
        return np.asarray(numpy_helper.to_array(tensor))
    except (ValueError, TypeError) as error:
        raise CaptureError(
            f"{tensor.name!r} does not match its shape: {error}", field=field
        ) from None


def _text(field: str, *values: object) -> None:
    """Refuses names that are not UTF-8, which protobuf returns as bytes."""
    for value in values:
        if not isinstance(value, str):
            raise CaptureError("a name that is not UTF-8", field=field, expected="text")


def _initialiser(tensor: Any, signature: Mapping[str, str], field: str) -> Value:
    dtype = dtype_of(tensor.data_type, f"{field} {tensor.name}")
    shape = tuple(tensor.dims)
    content = None
    if signature.get(tensor.name) != "parameter":
        content = array_of(tensor, f"{field} {tensor.name}")
    value = Value(tensor.name, shape, dtype, "initialiser", content=content)
    value.elsewhere = tensor.data_location != 0
    # Single numbers and integers are never weights; other floats may be.
    if not value.is_float or value.elements == 1:
        value.constant = content
    return value


def dtype_of(number: int, field: str) -> str:
    """Returns the name of an ONNX data type; raises CaptureError if graphs do not have it."""
    if number not in _DTYPES:
        raise CaptureError(
            f"data type {number} cannot be captured", field=field, expected=", ".join(ONNX_DTYPES)
        )
    return _DTYPES[number]


def onnx_array_type(dtype: str) -> Any:
    """Returns the numpy type of a dtype, including bfloat16."""
    from onnx import helper

    return helper.tensor_dtype_to_np_dtype(ONNX_DTYPES[dtype])


def _open_shape(info: Any, field: str) -> tuple[tuple[int | str, ...], str]:
    kind = info.type.tensor_type
    if not info.type.HasField("tensor_type") or not kind.HasField("shape"):
        raise CaptureError(f"{info.name!r} has no shape", field=field, expected="a tensor's shape")
    shape: list[int | str] = []
    for dim, extent in enumerate(kind.shape.dim):
        if extent.HasField("dim_value"):
            shape.append(int(extent.dim_value))
        else:
            _text(field, extent.dim_param)
            shape.append(extent.dim_param or f"{info.name}.{dim}")
    return tuple(shape), dtype_of(kind.elem_type, f"{field} {info.name}")


def _declared(graph: Any, bound: Mapping[str, int]) -> dict[str, tuple[Shape, str]]:
    """Returns shapes that the file itself gives, for operators that no inference covers."""
    declared = {}
    for info in (*graph.value_info, *graph.output):
        kind = info.type.tensor_type
        if not info.type.HasField("tensor_type") or not kind.HasField("shape"):
            continue
        dims = [
            int(d.dim_value) if d.HasField("dim_value") else bound.get(d.dim_param)
            for d in kind.shape.dim
        ]
        if kind.elem_type in _DTYPES and None not in dims:
            shape = tuple(d for d in dims if d is not None)
            declared[info.name] = (shape, _DTYPES[kind.elem_type])
    return declared


def _attribute(attribute: Any, field: str) -> Any:
    from onnx import helper

    try:
        value = helper.get_attribute_value(attribute)
    except ValueError:
        raise CaptureError(f"attribute {attribute.name!r} has no value", field=field) from None
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, list):
        return [v.decode("utf-8", "replace") if isinstance(v, bytes) else v for v in value]
    return value


_SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
_SIGNATURE_LINE = re.compile(r"^\w+: (PARAMETER|BUFFER|CONSTANT_TENSOR) target='([^']+)'", re.M)
_SCOPES = "pkg.torch.onnx.name_scopes"


def _signature(graph: Any) -> dict[str, Literal["parameter", "buffer"]]:
    """Returns what PyTorch's exporter records about parameters and buffers."""
    text = next((entry.value for entry in graph.metadata_props if entry.key == _SIGNATURE), "")
    _text("graph.metadata_props", text)
    return {
        name: "parameter" if kind == "PARAMETER" else "buffer"
        for kind, name in _SIGNATURE_LINE.findall(text)
    }


def _scopes(proto: Any) -> list[str]:
    """Returns modules, outermost first, then the operator, from PyTorch's exporter's notes."""
    for entry in proto.metadata_props:
        if entry.key == _SCOPES:
            return re.findall(r"'([^']*)'", str(entry.value))
    return []


def _scope(proto: Any) -> str:
    """Returns the module a node came from: by the exporter's notes, else a path in its name."""
    scopes = _scopes(proto)
    if scopes:
        return scopes[-2] if len(scopes) > 1 else ""
    if "/" in proto.name:
        return ".".join(part for part in proto.name.split("/")[:-1] if part)
    return ""
