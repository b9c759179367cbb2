"""What a captured ONNX file lacks, said as warnings."""

from __future__ import annotations

import warnings

from shardwise.capture.onnx.program import Program
from shardwise.errors import CaptureWarning
from shardwise.graph.graph import FLOAT_DTYPES, Graph


def note_gaps(program: Program, graph: Graph) -> None:
    """Warn of a missing loss and of parameters that the exporter lists and the file has lost."""
    outputs = [t for t in graph.tensors.values() if t.role == "output"]
    if not any(t.elements == 1 and t.dtype in FLOAT_DTYPES for t in outputs):
        _note(
            "the file has no loss: backward is taken to start from its outputs "
            "(export a module whose forward returns the loss)"
        )
    listed = sum(role == "parameter" for role in program.exporter_roles.values())
    found = sum(t.role == "parameter" for t in graph.tensors.values())
    if found < listed:
        _note(
            f"the exporter lists {listed} parameters and the file has {found}: it folded batch "
            "normalisation or merged weights of equal values "
            "(export with optimize=False, or with trained weights)"
        )
    if not found:
        _note("the file has no parameters that could be trained")


def _note(text: str) -> None:
    warnings.warn(text, CaptureWarning, stacklevel=4)
