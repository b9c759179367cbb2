"""Uploads: graphs and profiles, from the library's own objects, documents or files."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardwise.capture.source import parse_preset
from shardwise.client.exchange import Request
from shardwise.client.request import post
from shardwise.errors import BadInput
from shardwise.files import read_bounded
from shardwise.graph import Graph, canonical_json, graph_id
from shardwise.hardware import Hardware, hardware_document, list_builtin, load_hardware
from shardwise.step_sizes import StepSizes

GraphSource = str | Graph
"""A graph in a question: its id, `shipped:NAME`, a preset such as `llama3-8b`, captured here where
the service has no graph of it, or a graph, uploaded where it is not known."""

PRESET = "preset:"

HardwareSource = str | Hardware
"""Hardware in a question: an id or built-in name, either with `*NODES`, or a profile."""

ONNX = ".onnx"
GZIP = b"\x1f\x8b"
WORTH_PACKING = 1024
MOST_PACKED = 100
"""The highest compression ratio: services refuse more (SHARDWISE_MAX_GZIP_RATIO)."""


def graph_name(source: GraphSource) -> str:
    """Returns how a question names the graph: a preset by its name in the table."""
    if isinstance(source, Graph):
        return graph_id(source)
    preset = parse_preset(source)
    return source if preset is None else f"{PRESET}{preset.name}"


def hardware_name(source: HardwareSource) -> str:
    """Returns how a question names the profile: a built-in one by its name."""
    if isinstance(source, str):
        return source
    if source.name in list_builtin():
        spec = source.name if source.nodes is None else f"{source.name}*{source.nodes}"
        if load_hardware(spec).id == source.id:
            return spec
    return source.id


def upload_of_graph(
    source: Graph | Mapping[str, Any] | bytes | Path,
    *,
    name: str | None = None,
    batch: int | None = None,
    seq: int | None = None,
    sizes: Mapping[str, int] | None = None,
) -> Request:
    """Returns the request that uploads a graph.

    `source`: a graph, its document, the bytes of a JSON or gzip file, or a path; a path that ends
    in `.onnx`, or bytes that are neither JSON nor gzip, are an ONNX file, and for that `name` and
    the `sizes` of named dimensions. `batch` and `seq` are for those and for documents with symbols.
    Raises `BadInput` for an unreadable file.
    """
    onnx = isinstance(source, Path) and source.suffix == ONNX
    if isinstance(source, Path):
        content = read_bounded(source, "an ONNX file" if onnx else "a graph file")
        name = name or (source.name if onnx else None)
    elif isinstance(source, bytes):
        content = source
        onnx = content[:2] != GZIP and content.lstrip()[:1] != b"{"
    elif isinstance(source, Graph):
        content = canonical_json(source)
    else:
        content = json.dumps(source, allow_nan=False).encode()
    asked = tuple((k, str(v)) for k, v in StepSizes(batch, seq).asked.items())
    if not onnx:
        if name or sizes:
            raise BadInput(
                "applies only to ONNX files",
                field="name, sizes",
                expected="none of them with a graph file",
            )
        return _packed("/v1/graphs", content, asked)
    named = {"name": name or "upload.onnx", **{k: str(v) for k, v in (sizes or {}).items()}}
    headers = {"Content-Type": "application/onnx"}
    return post("/v1/graphs", content, headers, query=(*named.items(), *asked))


def upload_of_hardware(source: Hardware | Mapping[str, Any] | Path) -> Request:
    """Returns the request that uploads a profile. Raises `BadInput` if the file is not one."""
    if isinstance(source, Path):
        source = load_hardware(str(source.absolute()))
    document = hardware_document(source) if isinstance(source, Hardware) else source
    return _packed("/v1/hardware", json.dumps(document, allow_nan=False).encode())


def _packed(path: str, content: bytes, query: tuple[tuple[str, str], ...] = ()) -> Request:
    headers = {"Content-Type": "application/json"}
    if content[:2] != GZIP and len(content) > WORTH_PACKING:
        packed = gzip.compress(content, compresslevel=6, mtime=0)
        if len(content) < MOST_PACKED * len(packed):
            return post(path, packed, {**headers, "Content-Encoding": "gzip"}, query=query)
    return post(path, content, headers, query=query)
