"""The norm of all gradients, whatever their layouts: ||g||_p = (sum over elements |g|^p)^(1/p).

Each element is counted by the first of the ranks that own it, so one all-reduce of one number over
the whole mesh, and all stages of a pipeline, is enough.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from shardwise.errors import ShardwiseError
from shardwise.execute.parameters.store import ParameterStore


def total_norm(store: ParameterStore, norm_type: float = 2.0) -> torch.Tensor:
    """Returns the norm of all gradients, on every rank; collective."""
    counted = [
        parameter.grad.detach().float()
        for name, parameter in store.parameters().items()
        if parameter.grad is not None
        and store.placement(name).counts_here
        and name not in store.counted_elsewhere
    ]
    counted = [gradient for gradient in counted if gradient.numel()]
    infinite = norm_type == float("inf")
    total = torch.zeros((), dtype=torch.float32, device=store.device)
    if counted:
        norms = torch.stack(torch._foreach_norm(counted, norm_type))
        total = norms.max() if infinite else norms.pow(norm_type).sum()
    if store.mesh.model_size > 1:
        operation = dist.ReduceOp.MAX if infinite else dist.ReduceOp.SUM
        dist.all_reduce(total, operation, group=store.mesh.model_group)
    return total if infinite else total.pow(1.0 / norm_type)


def clip_grad_norm_(
    store: ParameterStore,
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
) -> torch.Tensor:
    """Scales all gradients so that their norm is at most `max_norm`; returns the norm before.

    Works like `torch.nn.utils.clip_grad_norm_` on one device. Collective. Raises ShardwiseError for
    a norm that is not finite, if `error_if_nonfinite` is set.
    """
    norm = total_norm(store, norm_type)
    if error_if_nonfinite and not torch.isfinite(norm):
        raise ShardwiseError(f"the norm of the gradients is {norm.item()}, so they are not clipped")
    gradients = [p.grad.detach() for p in store.parameters().values() if p.grad is not None]
    if gradients:
        torch._foreach_mul_(gradients, torch.clamp(max_norm / (norm + 1e-6), max=1.0))
    return norm
