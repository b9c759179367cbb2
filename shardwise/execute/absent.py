"""What a rank runs in place of an operator that it has no share of.

All ranks have the same instructions in the same order. Where a rank has no part of a tensor it has
an empty one in its place, which autograd records as it does the tensor itself. So every crossing is
reached by backward on all ranks or on none, and since autograd goes through what it recorded
youngest first, all ranks call the collectives that they share in one order.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from shardwise.execute.local.calling import Run
from shardwise.graph.graph import Graph, Operator


def absent(op: Operator, graph: Graph, differentiated: Collection[str], device: Any) -> Run:
    """Returns the operator without a share of it: empty tensors of the outputs' dtypes.

    Those of `differentiated` have a gradient.
    """
    dtypes = [getattr(torch, graph.tensors[name].dtype) for name in op.outputs]
    flows = [n for n, name in enumerate(op.outputs) if name in differentiated]
    carries = [n for n, name in enumerate(op.inputs) if name in differentiated]

    def run(*x: Any) -> list[Any]:
        results = [torch.empty(0, dtype=dtype, device=device) for dtype in dtypes]
        given = [x[n] for n in carries]
        if flows and torch.is_grad_enabled() and any(t.requires_grad for t in given):
            linked = _Absent.apply([dtypes[n] for n in flows], device, *given)
            for n, tensor in zip(flows, linked, strict=True):
                results[n] = tensor
        return results

    return run


class _Absent(torch.autograd.Function):  # type: ignore[misc]
    """Empty tensors that depend on others."""

    @staticmethod
    def forward(ctx: Any, dtypes: Sequence[torch.dtype], device: Any, *inputs: Any) -> Any:
        ctx.like = [(x.shape, x.dtype) for x in inputs]
        ctx.device = device
        return tuple(torch.empty(0, dtype=dtype, device=device) for dtype in dtypes)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        like = zip(ctx.like, ctx.needs_input_grad[2:], strict=True)
        return (
            None,
            None,
            *(
                torch.zeros(shape, dtype=dtype, device=ctx.device) if wanted else None
                for (shape, dtype), wanted in like
            ),
        )


def differentiated_by(graph: Graph, trains: Mapping[str, bool]) -> frozenset[str]:
    """Returns the tensors of which backward computes a gradient.

    `trains` says of every parameter whether it has one.
    """
    names = {name for name, trained in trains.items() if trained}
    for op in graph.operators:
        if any(name in names for name in op.inputs):
            names.update(o for o in op.outputs if graph.tensors[o].differentiable)
    return frozenset(names)
