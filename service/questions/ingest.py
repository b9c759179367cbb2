"""Uploads become graphs, tasks mappings: ONNX, large JSON and YAML in a process of its own.

Reading holds the interpreter: a large body read in the service's own process would delay all
answers, even those from memory.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from service.base.json_body import read_json
from service.base.pools import LARGE_BYTES
from service.base.problems import Problem
from service.base.settings import Settings
from service.base.yaml_text import read_mapping
from service.questions.ingest_process import Reading
from service.questions.upload import Upload, document_upload, upload_of
from shardwise.graph.document import is_folded

__all__ = ["ONNX_TYPES", "Upload", "read_upload", "upload_of"]

ONNX_TYPES = ("application/onnx", "application/x-onnx", "application/octet-stream",
              "application/x-protobuf", "application/protobuf")  # fmt: skip


def read_upload(
    body: bytes,
    content_type: str,
    name: str,
    sizes: dict[str, int],
    settings: Settings,
    reading: Reading,
) -> Upload:
    """Returns the graph of a request's body. Raises BadInput or a Problem with the reason."""
    if not body:
        raise Problem("invalid", "the body is empty", expected="a graph or an ONNX file")
    if content_type in ONNX_TYPES:
        return _elsewhere(body, {"kind": "onnx", "name": name, "sizes": sizes}, settings, reading)
    if content_type not in ("", "application/json", "application/gzip", "application/x-gzip",
                            "application/x-www-form-urlencoded", "text/plain"):  # fmt: skip
        raise Problem(
            "unsupported-media-type",
            f"the type {content_type[:80]!r} is not understood",
            expected=f"application/json or {ONNX_TYPES[0]}",
        )
    if len(body) > LARGE_BYTES:
        return _elsewhere(body, {"kind": "json", "sizes": sizes}, settings, reading)
    document = read_json(body, settings.max_json_depth)
    if is_folded(document):
        return _elsewhere(body, {"kind": "json", "sizes": sizes}, settings, reading)
    return document_upload(document, settings.max_operators, sizes)


LARGE_TASK = 2**14
"""Characters of YAML from which a task is read in a process of its own."""


def reader(settings: Settings, reading: Reading) -> Callable[[str, str], dict[Any, Any]]:
    """Returns a reader of YAML mappings; its errors name its second argument, a field."""

    def read(text: str, field: str) -> dict[Any, Any]:
        if len(text) <= LARGE_TASK:
            return read_mapping(text, field)
        request = {"kind": "yaml", "field": field}
        answer = reading.read(text.encode("utf-8", "surrogatepass"), request, settings)
        return msgspec.msgpack.decode(answer, type=dict[Any, Any])

    return read


def check_call(
    body: bytes, texts: Mapping[str, str], most: int, settings: Settings, reading: Reading
) -> None:
    """Checks a large body of `/mcp` in a process of its own.

    `texts` names the long text that some tools' calls have. Raises a `Problem` for what is no JSON
    and for more than `most` bytes besides that text.
    """
    request = {"kind": "call", "texts": dict(texts), "most": most}
    reading.read(body, {**request, "max_depth": settings.max_json_depth}, settings)


def _elsewhere(
    body: bytes, request: dict[str, Any], settings: Settings, reading: Reading
) -> Upload:
    """Reads in a child with bounded memory and time, since parsers are not to be trusted.

    The child does not name the id either: graphs are shared between tenants by their content id.
    """
    limits = {"max_depth": settings.max_json_depth, "max_operators": settings.max_operators}
    answer = reading.read(body, {**request, **limits}, settings)
    summary, _, canonical = answer.partition(b"\n")
    content_id = "sha256:" + hashlib.sha256(canonical).hexdigest()
    return Upload(content_id, canonical, json.loads(summary))
