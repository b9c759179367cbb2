"""Model flops utilisation: the share of the GPUs' peak that a model's own products would take.

    utilisation = Σ flops / peak(dtype) / (time of a step · GPUs)

Flops are those of products, convolutions and attention, forward and as many again in backward for
each factor that needs its gradient, without recomputation or anything else (Chowdhery et al. 2022,
appendix B; Narayanan et al. 2021). Causal attention counts whole (the sources above), or half, as
kernels compute it (Dao et al. 2023). At long sequences these differ by up to a factor of two, so
answers name both.
"""

from __future__ import annotations

from collections.abc import Mapping

from shardwise.graph.graph import DTYPE_BYTES, Graph, Operator
from shardwise.graph.inspect import matrix_flops
from shardwise.hardware import Device
from shardwise.sharding.coarsen import Coarsened
from shardwise.sharding.pattern import Patterns


def model_flops(
    coarsened: Coarsened, patterns: Patterns, graph: Graph, *, computed: bool = False
) -> Mapping[str, float]:
    """Returns the flops of a step by dtype.

    `coarsened` has the whole batch, `graph` the dtypes of operators. `computed` counts causal
    attention as its kernels compute it.
    """
    flops: dict[str, float] = {}
    for group in coarsened.groups:
        for member in group.members:
            op = member.operator
            forward = matrix_flops(op, member.semantics, computed=computed)
            if forward:
                passes = 1 + patterns.gradient_products(member)
                dtype = _dtype(op, graph)
                flops[dtype] = flops.get(dtype, 0.0) + forward * passes
    return flops


def _dtype(op: Operator, graph: Graph) -> str:
    """Returns the narrowest floating dtype that a product reads: wider ones are cast to it."""
    read = [graph.tensors[name] for name in op.inputs]
    floating = [tensor.dtype for tensor in read if tensor.differentiable]
    return min(floating, key=DTYPE_BYTES.__getitem__, default=read[0].dtype)


def ideal_s(flops: Mapping[str, float], device: Device) -> float:
    """Returns the seconds of these flops on one device at its peak."""
    return sum(number / device.peak(dtype) for dtype, number in flops.items())
