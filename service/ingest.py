"""Uploads become graphs: JSON here, ONNX in a process of its own, both within limits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from service.json_body import read_json
from service.problems import Problem
from service.settings import Settings
from shardwise.errors import BadInput
from shardwise.graph import (
    DTYPE_BYTES,
    Graph,
    canonical_json,
    graph_from_document,
    graph_from_json,
    graph_id,
)

ONNX_TYPES = ("application/onnx", "application/x-onnx", "application/octet-stream",
              "application/x-protobuf", "application/protobuf")  # fmt: skip


@dataclass(frozen=True)
class Upload:
    """A graph that was read: content id, canonical JSON, what lists say of it."""

    id: str
    canonical: bytes
    summary: dict[str, Any]


def read_upload(
    body: bytes, content_type: str, name: str, sizes: dict[str, int], settings: Settings
) -> Upload:
    """The graph of a request's body. BadInput or a Problem says what is wrong."""
    if not body:
        raise Problem("invalid", "the body is empty", expected="a graph or an ONNX file")
    if content_type in ONNX_TYPES:
        return _from_onnx(body, name, sizes, settings)
    if content_type not in ("", "application/json", "application/gzip", "application/x-gzip",
                            "application/x-www-form-urlencoded", "text/plain"):  # fmt: skip
        raise Problem(
            "unsupported-media-type",
            f"the type {content_type[:80]!r} is not understood",
            expected=f"application/json or {ONNX_TYPES[0]}",
        )
    document = read_json(body, settings.max_json_depth)
    operators = document.get("operators") if isinstance(document, dict) else None
    if isinstance(operators, list) and len(operators) > settings.max_operators:
        raise BadInput(
            f"{len(operators)} operators",
            field="operators",
            expected=f"at most {settings.max_operators}",
        )
    return upload_of(graph_from_document(document))


def upload_of(graph: Graph) -> Upload:
    """A checked graph as it is stored."""
    roles: dict[str, int] = {}
    parameters = 0
    parameter_bytes = 0
    for tensor in graph.tensors.values():
        roles[tensor.role] = roles.get(tensor.role, 0) + 1
        if tensor.role == "parameter":
            elements = 1
            for extent in tensor.shape:
                elements *= extent
            parameters += elements
            parameter_bytes += elements * DTYPE_BYTES[tensor.dtype]
    summary = {
        "name": graph.name,
        "operators": len(graph.operators),
        "tensors": roles,
        "parameters": parameters,
        "parameter_bytes": parameter_bytes,
        "batch_size": graph.batch_size,
    }
    return Upload(graph_id(graph), canonical_json(graph), summary)


def _from_onnx(body: bytes, name: str, sizes: dict[str, int], settings: Settings) -> Upload:
    """In a child with bounded memory and time: a protobuf parser is no place to be trusting."""
    request = {
        "name": name,
        "sizes": sizes,
        "memory_bytes": settings.ingest_memory_bytes,
        "max_file_bytes": settings.max_body_bytes,
    }
    command = [sys.executable, "-P", "-m", "service.ingest_child", json.dumps(request)]
    try:
        done = subprocess.run(
            command,
            input=body,
            capture_output=True,
            timeout=settings.ingest_time_s,
            check=False,
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
    except subprocess.TimeoutExpired:
        raise Problem(
            "too-complex", f"reading it took more than {settings.ingest_time_s:g} s"
        ) from None
    if done.returncode == 2:
        error = json.loads(done.stdout)
        raise BadInput(error["problem"], field=error["field"], expected=error["expected"])
    if done.returncode != 0:
        raise Problem(
            "too-complex",
            f"reading it needed more than {settings.ingest_memory_bytes} bytes of memory "
            f"or ended its process (status {done.returncode})",
        )
    graph = graph_from_json(done.stdout)
    if len(graph.operators) > settings.max_operators:
        raise BadInput(
            f"{len(graph.operators)} operators",
            field="operators",
            expected=f"at most {settings.max_operators}",
        )
    return upload_of(graph)
