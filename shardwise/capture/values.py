"""Values for the inputs and buffers of a graph: random numbers that its operators accept."""

from __future__ import annotations

from typing import Any

from shardwise.graph.graph import Graph, Tensor


def value_of(graph: Graph, tensor: Tensor, random: Any) -> Any:
    """Returns values for an input or buffer: normal, true, or ids below every table they index.

    `random` is a `torch.Generator` on the CPU, where the values are too.
    """
    import torch

    dtype = getattr(torch, tensor.dtype)
    if dtype is torch.bool:
        return torch.ones(tensor.shape, dtype=dtype)
    if not (dtype.is_floating_point or dtype.is_complex):
        ids = torch.randint(0, _bound(graph, tensor.name), tensor.shape, generator=random)
        return ids.to(dtype)
    if tensor.role == "buffer":
        # Running variances, masks, frequencies: ones are valid for all of them.
        return torch.ones(tensor.shape, dtype=dtype)
    return torch.randn(tensor.shape, generator=random).to(dtype)


def _bound(graph: Graph, name: str) -> int:
    """Returns how many values an integer may have: the fewest rows it indexes, else 1."""
    bounds = []
    for op in graph.operators:
        if name not in op.inputs:
            continue
        table = graph.tensors[op.inputs[0]].shape
        if op.kind.startswith("aten.embedding") and op.inputs[0] != name:
            bounds.append(table[0])
        elif op.kind.startswith(("aten.cross_entropy_loss", "aten.nll_loss")):
            bounds.append(table[1] if len(table) > 1 else table[0])
        else:
            bounds.append(1)
    return max(min(bounds, default=1), 1)
