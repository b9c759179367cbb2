"""Graphs as `shardwise.graph/1` and `/2` documents, and the content id of a graph.

The canonical form is the document as JSON with sorted keys, no spaces and UTF-8 text; its
SHA-256 is the graph's content id. A document says nothing twice: order of tensors and operators
is the graph's own, every field of `graph.py` is written; an unknown batch dimension is left out,
and so is what says that a parameter is frozen where it trains.

Version 2 has the rows of tensors and of operators folded (`folding.py`): the layers of a model are
written once. It is another way to write the same graph, whose id stays that of version 1. With
symbols (`symbols.py`) it holds for a range of batches and sequence lengths, and is one graph of
version 1 for each of them.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

import msgspec

from shardwise import validation
from shardwise.errors import BadInput
from shardwise.folding import fold_rows, unfold_rows
from shardwise.graph.graph import Graph, Operator, Tensor
from shardwise.graph.step import step_of
from shardwise.graph.symbols import Symbols, is_expression, mark_batch, with_values
from shardwise.graph.validate import validate_graph
from shardwise.step_sizes import AS_CAPTURED, StepSizes

SCHEMA = "shardwise.graph/1"
FOLDED_SCHEMA = "shardwise.graph/2"
GRAPH_FILE = "a graph file; for a model, first shardwise capture MODEL -o FILE"
"""What errors expect where a graph is read."""
MAX_ATTRIBUTE_DEPTH = 16
MAX_OPERATORS = 1_000_000
_MAX_TENSORS = 4 * MAX_OPERATORS


class _TensorDocument(msgspec.Struct):
    name: str
    shape: tuple[int, ...]
    dtype: str
    role: str
    batch_dim: int | None = None
    frozen: bool = False
    stored: str | None = None


class _OperatorDocument(msgspec.Struct):
    name: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any] = {}
    scope: str = ""


class _GraphDocument(msgspec.Struct):
    name: str
    tensors: list[_TensorDocument]
    operators: list[_OperatorDocument]


class _FoldedDocument(msgspec.Struct):
    name: str
    tensors: list[Any]
    operators: list[Any]
    symbols: Symbols | None = None


class _Header(msgspec.Struct):
    schema: str


def is_folded(document: object) -> bool:
    """Returns whether a decoded document is of version 2, which may be long once it is unfolded."""
    return isinstance(document, Mapping) and document.get("schema") == FOLDED_SCHEMA


def graph_document(graph: Graph) -> dict[str, Any]:
    """Returns the graph as plain JSON values."""
    return {
        "schema": SCHEMA,
        "name": graph.name,
        "tensors": [_tensor_document(tensor) for tensor in graph.tensors.values()],
        "operators": [
            {
                "name": op.name,
                "kind": op.kind,
                "inputs": list(op.inputs),
                "outputs": list(op.outputs),
                "attributes": dict(op.attributes),
                "scope": op.scope,
            }
            for op in graph.operators
        ],
    }


def folded_document(graph: Graph) -> dict[str, Any]:
    """Returns the graph as plain JSON values with its repeated rows folded."""
    return folded(graph_document(graph))


def folded(document: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a document with its repeated rows folded; its numbers may be expressions."""
    rows = {name: fold_rows(document[name], is_expression) for name in ("tensors", "operators")}
    return {**document, "schema": FOLDED_SCHEMA, **rows}


def canonical_json(graph: Graph) -> bytes:
    """Returns the canonical form: UTF-8 JSON, sorted keys, no spaces."""
    return json_of(graph_document(graph))


def folded_json(graph: Graph) -> bytes:
    """Returns version 2 of the document, written as the canonical form is."""
    return json_of(folded_document(graph))


def json_of(document: Mapping[str, Any]) -> bytes:
    """Returns a document as the canonical form is written."""
    text = json.dumps(
        document,
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=False,
        allow_nan=False,
    )
    return text.encode()


def graph_id(graph: Graph) -> str:
    """Returns `sha256:` and the hexadecimal digest of the canonical form."""
    return "sha256:" + hashlib.sha256(canonical_json(graph)).hexdigest()


def content_id(graph: Graph) -> str:
    """Returns the content id of a graph, or of that which an option made it of (`tuning.py`)."""
    return graph.untuned or graph_id(graph)


def graph_from_document(
    document: object, file: str | None = None, sizes: StepSizes = AS_CAPTURED
) -> Graph:
    """Returns the validated graph of a decoded document, of these sizes where it has symbols.

    BadInput names `file` and the field.
    """
    try:
        header = validation.convert(document, _Header)
        _check_schema(header.schema)
        if header.schema == FOLDED_SCHEMA:
            return _unfolded(validation.convert(document, _FoldedDocument), sizes)
        return _at(_build(validation.convert(document, _GraphDocument)), sizes)
    except BadInput as error:
        raise _placed(error, file) from None


def graph_from_json(data: bytes, file: str | None = None, sizes: StepSizes = AS_CAPTURED) -> Graph:
    """Returns the validated graph of a JSON text, as `graph_from_document` does.

    BadInput names `file`, and the field or the position.
    """
    try:
        header = validation.decode(data, _Header)
        _check_schema(header.schema)
        if header.schema == FOLDED_SCHEMA:
            return _unfolded(validation.decode(data, _FoldedDocument), sizes)
        return _at(_build(validation.decode(data, _GraphDocument)), sizes)
    except validation.NotJson as error:
        raise BadInput(error.problem, file=file, expected=GRAPH_FILE) from None
    except BadInput as error:
        raise _placed(error, file) from None


def _unfolded(document: _FoldedDocument, sizes: StepSizes) -> Graph:
    lists = {"tensors": document.tensors, "operators": document.operators}
    if document.symbols is not None:
        values = document.symbols.chosen(sizes)
        lists = {name: with_values(rows, values, name) for name, rows in lists.items()}
    rows = {
        name: unfold_rows(lists[name], most, name)
        for name, most in (("tensors", _MAX_TENSORS), ("operators", MAX_OPERATORS))
    }
    whole = validation.convert({"name": document.name, **rows}, _GraphDocument)
    if document.symbols is not None:
        return _build(whole, mark=True)
    return _at(_build(whole), sizes)


def _at(graph: Graph, sizes: StepSizes) -> Graph:
    """Returns a graph without symbols. Raises `BadInput` for sizes other than its own."""
    if sizes.asked:
        own = step_of(graph)
        for name, value in sizes.asked.items():
            if value != getattr(own, name):
                raise BadInput(
                    f"{value}, and the file has the graph of batch {own.batch} and sequence "
                    f"{own.seq} alone",
                    field=name,
                    expected="a file with symbols, as `shardwise capture` writes them, or a "
                    f"capture with --{name} {value}",
                )
    return graph


def _tensor_document(tensor: Tensor) -> dict[str, Any]:
    document: dict[str, Any] = {
        "name": tensor.name,
        "shape": list(tensor.shape),
        "dtype": tensor.dtype,
        "role": tensor.role,
    }
    if tensor.batch_dim is not None:
        document["batch_dim"] = tensor.batch_dim
    if tensor.frozen:
        document["frozen"] = True
    if tensor.stored is not None:
        document["stored"] = tensor.stored
    return document


def _check_schema(schema: str) -> None:
    if schema in (SCHEMA, FOLDED_SCHEMA):
        return
    kind, _, version = schema.partition("/")
    problem = (
        f"graph version {version!r} is not known to this release"
        if kind == "shardwise.graph"
        else f"{schema!r} is not a graph"
    )
    raise BadInput(problem, field="schema", expected=SCHEMA)


def _build(document: _GraphDocument, *, mark: bool = False) -> Graph:
    for field, items, limit in (
        ("operators", document.operators, MAX_OPERATORS),
        ("tensors", document.tensors, _MAX_TENSORS),
    ):
        if len(items) > limit:
            raise BadInput(f"{len(items)} {field}", field=field, expected=f"at most {limit}")
    _check_text(document.name, "name")
    tensors: dict[str, Tensor] = {}
    for position, item in enumerate(document.tensors):
        _check_text(item.name, f"tensors[{position}].name")
        if item.name in tensors:
            raise BadInput(
                f"two tensors are called {item.name!r}",
                field=f"tensors[{position}].name",
                expected="unique names",
            )
        # The role is checked by validate_graph, which knows the field to name.
        tensors[item.name] = Tensor(
            item.name,
            item.shape,
            item.dtype,
            item.role,  # type: ignore[arg-type]
            item.batch_dim,
            frozen=item.frozen,
            stored=item.stored,
        )
    operators = []
    for position, op in enumerate(document.operators):
        for field in ("name", "kind", "scope"):
            _check_text(getattr(op, field), f"operators[{position}].{field}")
        _check_attribute(op.attributes, f"operators[{position}].attributes", 0)
        operators.append(Operator(op.name, op.kind, op.inputs, op.outputs, op.attributes, op.scope))
    if mark:
        tensors = mark_batch(tensors)
    return validate_graph(Graph(document.name, tensors, tuple(operators)))


def _check_text(text: str, field: str) -> None:
    """Raises `BadInput` for half a surrogate pair, which Python's JSON reader accepts."""
    if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
        raise BadInput(
            f"{text!r} is not Unicode text",
            field=field,
            expected="text without unpaired surrogates",
        )


def _check_attribute(value: object, field: str, depth: int) -> None:
    if depth > MAX_ATTRIBUTE_DEPTH:
        raise BadInput("nested too deeply", field=field, expected=f"{MAX_ATTRIBUTE_DEPTH} levels")
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise BadInput(f"the key {key!r}", field=field, expected="strings as keys")
            _check_text(key, field)
            _check_attribute(item, f"{field}.{key}", depth + 1)
    elif isinstance(value, list | tuple):
        for position, item in enumerate(value):
            _check_attribute(item, f"{field}[{position}]", depth + 1)
    elif isinstance(value, str):
        _check_text(value, field)
    elif isinstance(value, float) and not math.isfinite(value):
        raise BadInput(
            f"{value} is not a finite number", field=field, expected='a number, or "inf" as text'
        )
    elif value is not None and not isinstance(value, int | float | bool):
        raise BadInput(
            f"a {type(value).__name__} is not a JSON value",
            field=field,
            expected="a string, number, boolean, null, list or object",
        )


def _placed(error: BadInput, file: str | None) -> BadInput:
    return error.in_file(file) if file and not error.file else error
