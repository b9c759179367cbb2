"""torch.export of a training step, and its graph without in-place operators."""

from __future__ import annotations

from typing import Any

from shardwise.capture.ctc import register_shapes
from shardwise.capture.guard import foreign_code, quiet
from shardwise.capture.model import Model
from shardwise.capture.mutation import mutates_views


def export(model: Model, source: str) -> Any:
    """Returns the ExportedProgram of one forward pass with the loss, in PyTorch's training IR.

    Operators stay whole (`aten.linear`, `aten.layer_norm`): nothing is decomposed. In-place
    operators are left to the conversion, unless they write through views: then torch makes the
    graph functional, which decomposes only batch normalisation. Raises CaptureError naming the
    operator and the line that cannot be exported.
    """
    import torch

    register_shapes()
    with foreign_code("torch.export failed", source=source), quiet():
        # torch would merge inputs that are the same tensor object, such as tokens used as labels.
        args, kwargs = torch.utils._pytree.tree_map_only(
            torch.Tensor, torch.empty_like, (model.args, dict(model.kwargs))
        )
        program = torch.export.export(model.module, args, kwargs=kwargs, strict=False)
        if mutates_views(program.graph_module):
            program = program.run_decompositions({})
    return program
