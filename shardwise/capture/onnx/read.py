"""Reads ONNX files from disk, within the limits for every file; external data stays unopened."""

from __future__ import annotations

import importlib.util
from typing import Any

from shardwise.errors import CaptureError
from shardwise.files import read_bounded

MAX_NODES = 1_000_000
"""Most nodes a file may have, with local functions inlined."""


def require_onnx() -> None:
    """Raises CaptureError unless the onnx extra is installed."""
    if importlib.util.find_spec("onnx") is None:
        raise CaptureError(
            "capturing ONNX files needs onnx, which is not installed",
            expected="pip install 'shardwise[onnx]'",
        )


def read_model(path: str) -> Any:
    """Returns the ModelProto of a file, its local functions inlined.

    Raises CaptureError if it is not an ONNX model, and BadInput for a file that cannot be read or
    exceeds the limit for every file (large weights belong in external data, which is not read).
    """
    import onnx
    from google.protobuf.message import DecodeError

    data = read_bounded(path, "an ONNX file")
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except (DecodeError, RuntimeError, ValueError):
        raise CaptureError("not an ONNX model: broken or truncated", field="the file") from None
    if not model.HasField("graph") or not model.graph.node:
        raise CaptureError("the file has no graph", field="graph", expected="an ONNX model")
    if not model.opset_import:
        raise CaptureError(
            "the file names no operator set", field="opset_import", expected="a version"
        )
    return _without_functions(model)


def _without_functions(model: Any) -> Any:
    import onnx.inliner

    nodes = _written_out(model)
    if nodes > MAX_NODES:
        raise CaptureError(f"more than {MAX_NODES:,} nodes", field="graph.node")
    if not model.functions:
        return model
    try:
        return onnx.inliner.inline_local_functions(model)
    except (RuntimeError, ValueError) as error:
        raise CaptureError(f"its functions cannot be inlined: {error}", field="functions") from None


def _written_out(model: Any) -> int:
    """Returns the number of nodes with local functions inlined; small files may hide many."""
    functions = {(f.domain, f.name): f for f in model.functions}
    sizes: dict[tuple[str, str], int] = {}
    opened: list[tuple[str, str]] = []

    def size(nodes: Any) -> int:
        total = 0
        for node in nodes:
            key = (node.domain, node.op_type)
            total += called(key) if key in functions else 1
            for attribute in node.attribute:
                total += size(attribute.g.node) if attribute.HasField("g") else 0
            if total > MAX_NODES:
                return total
        return total

    def called(key: tuple[str, str]) -> int:
        if key in opened:
            raise CaptureError(f"function {key[1]} calls itself", field="functions")
        if key not in sizes:
            opened.append(key)
            if len(opened) > _DEEPEST:
                raise CaptureError("functions call each other too deeply", field="functions")
            sizes[key] = size(functions[key].node)
            opened.pop()
        return sizes[key]

    return size(model.graph.node)


_DEEPEST = 100
