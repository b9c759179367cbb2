"""Captures an ONNX file as its training graph.

The file's operators are translated to the ATen operators that they were, or would have been, in
PyTorch (ADR 0008), so that one TDL description serves both. Only shapes and data types of weights
are used: external data is never opened. A file without a loss is accepted: backward then starts
from its outputs.
"""

from __future__ import annotations

from shardwise.capture.onnx.fold import fold
from shardwise.capture.onnx.fuse import fuse
from shardwise.capture.onnx.notes import note_gaps
from shardwise.capture.onnx.program import load_program
from shardwise.capture.onnx.read import read_model, require_onnx
from shardwise.capture.onnx.sizes import Sizes
from shardwise.capture.onnx.translate import translate
from shardwise.errors import BadInput, CaptureError
from shardwise.graph.graph import Graph
from shardwise.graph.validate import validate_graph


def capture_onnx(path: str, sizes: Sizes, name: str) -> Graph:
    """Returns the training graph of the ONNX file at `path`.

    `sizes` binds the dimensions that the file leaves open. Raises CaptureError for a file that is
    not an ONNX model, or whose shapes cannot be determined; warns with CaptureWarning of what the
    file lacks (a loss, parameters that its exporter merged).
    """
    require_onnx()
    try:
        program = load_program(read_model(path), sizes)
        fold(program)
        fuse(program)
        graph = validate_graph(translate(program, name))
    except CaptureError as error:
        raise error.in_file(path) from None
    except BadInput as error:
        raise CaptureError(
            error.problem, file=error.file or path, field=error.field, expected=error.expected
        ) from None
    note_gaps(program, graph)
    return graph
