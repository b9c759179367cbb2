"""Warns of what a captured ONNX file lacks."""

from __future__ import annotations

import warnings

from shardwise.capture.onnx.program import Program
from shardwise.errors import CaptureWarning
from shardwise.graph.graph import FLOAT_DTYPES, Graph


def note_gaps(program: Program, graph: Graph) -> None:
    """Warns of a missing loss and of listed parameters that the file has lost."""
    outputs = [t for t in graph.tensors.values() if t.role == "output"]
    if not any(t.elements == 1 and t.dtype in FLOAT_DTYPES for t in outputs):
        _note(
            "the file has no loss: backward is taken to start from its outputs "
            "(export a module whose forward returns the loss)"
        )
    lost = _lost(program, graph)
    if lost:
        shown = ", ".join(lost[:3]) + (f" and {len(lost) - 3} more" if len(lost) > 3 else "")
        _note(
            f"parameters that the exporter lists and the file lacks: {shown}; it folded them or "
            "merged those of equal values (export with optimize=False, or with trained weights)"
        )
    if not any(t.role == "parameter" for t in graph.tensors.values()):
        _note("the file has no parameters that could be trained")


def _lost(program: Program, graph: Graph) -> list[str]:
    """Returns listed parameters without a tensor of their own.

    A weight whose transpose was folded has another name, and a tied one that of its twin: each
    module must read as many parameters as are listed for it. Vectors are not tied: one that belongs
    to another module was merged.
    """
    scopes = {op.scope for op in graph.operators}
    read: dict[str, set[str]] = {}
    for op in graph.operators:
        for name in op.inputs:
            if graph.tensors[name].role == "parameter":
                read.setdefault(op.scope, set()).add(name)
    listed: dict[str, list[str]] = {}
    for name, role in program.exporter_roles.items():
        if role == "parameter":
            listed.setdefault(name.rpartition(".")[0], []).append(name)
    lost = []
    for scope, names in listed.items():
        if scope not in scopes and len(names) == 1:
            continue  # the other name of a tied parameter
        own = {
            name
            for name in read.get(scope, ())
            if len(graph.tensors[name].shape) != 1
            or name.rpartition(".")[0] in (scope, "")
            or name not in program.exporter_roles
        }
        if len(own) < len(names):
            lost += [name for name in names if name not in own and name not in graph.tensors]
    return lost


def _note(text: str) -> None:
    warnings.warn(text, CaptureWarning, stacklevel=4)
