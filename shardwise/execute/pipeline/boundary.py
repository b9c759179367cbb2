"""What goes over a cut: each rank's share of every tensor, in the layout in which it is made."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from shardwise.documents.plan import PlannedEdge
from shardwise.errors import BadInput
from shardwise.execute.collectives import parse_layout
from shardwise.execute.placement import Placement
from shardwise.sharding.layout import describe


@dataclass(frozen=True)
class Boundary:
    """A tensor of a micro-batch that goes from a stage to the next, this rank's share of it.

    `differentiable`: its gradient, in the same shape, comes back.
    """

    name: str
    layout: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype
    differentiable: bool


def boundaries(
    names: Sequence[str], placement: Placement, differentiated: Collection[str]
) -> tuple[Boundary, ...]:
    """Returns what these tensors are between two stages.

    Raises `BadInput` for one whose gradient is shared out in another way than itself.
    """
    crossing = []
    for name in names:
        tensor, pair = placement.graph.tensors[name], placement.output_layouts[name]
        shape = placement.mesh.local_shape(tensor.shape, pair.forward)
        if name in differentiated:
            back = placement.mesh.local_shape(tensor.shape, pair.gradient)
            if back != shape:
                raise BadInput(
                    f"the gradient of {name} has other shares than it: {[*back]}, not {[*shape]}",
                    field="groups.operators.outputs",
                    expected="a tensor that goes between stages with its gradient",
                )
        dtype = getattr(torch, tensor.dtype)
        crossing.append(Boundary(name, pair.forward, shape, dtype, name in differentiated))
    return tuple(crossing)


def check_edges(placement: Placement, edges: Sequence[PlannedEdge]) -> None:
    """Raises `BadInput` unless every edge, of all stages, begins in the layout in which its tensors
    are made, and its steps lead from there to where it says that they do."""
    mesh = placement.mesh
    for edge in edges:
        for name in edge.tensors:
            made = placement.output_layouts.get(name)
            if made is None:
                raise BadInput(
                    f"{name} is made by no operator", field="edges.tensors", expected="an output"
                )
            if list(edge.layout_at_source) != describe(made.forward, ()):
                raise BadInput(
                    f"{name} leaves {edge.source} as {', '.join(edge.layout_at_source)}, but is "
                    f"made as {', '.join(describe(made.forward, ()))}",
                    field="edges.layout_at_source",
                    expected="the layout in which its operator makes it, on both sides of a hop",
                )
            target = parse_layout(edge.layout_at_target)
            placement.path((mesh, made.forward), edge.forward, (mesh, target), name)
