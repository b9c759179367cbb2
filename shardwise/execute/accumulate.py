"""Gradient accumulation: one step of A micro-batches within one call of the module.

Each micro-batch runs backward before the next one runs forward, so the activations of only one are
in memory. The accumulated gradients are held separately from `.grad`; `loss.backward()` of the mean
loss scales them by its incoming gradient and adds them to `.grad`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from shardwise.errors import BadInput, ShardwiseError


def accumulate(
    parts: int, run: Callable[[int], torch.Tensor], parameters: Sequence[torch.nn.Parameter]
) -> torch.Tensor:
    """Returns the mean of `run(0)` … `run(parts - 1)`, each a scalar loss; differentiable.

    Raises `BadInput` if a micro-batch returns something other than a scalar.
    """

    def part(number: int) -> torch.Tensor:
        loss = run(number)
        if loss.numel() != 1:
            raise BadInput(
                f"the module returns a tensor of shape {list(loss.shape)}",
                field="micro_batches",
                expected="a scalar loss, or a plan with one micro-batch",
            )
        (loss / parts).backward()
        return loss.detach()

    def step() -> torch.Tensor:
        total = part(0)
        for number in range(1, parts):
            total = total + part(number)
        return total / parts

    return with_backward(step, parameters)


def with_backward(
    step: Callable[[], torch.Tensor], parameters: Sequence[torch.nn.Parameter]
) -> torch.Tensor:
    """Returns the loss of `step`, which runs backward itself; differentiable."""
    earlier = [p.grad for p in parameters]
    for p in parameters:
        p.grad = None
    try:
        loss = step()
        accumulated = [p.grad for p in parameters]
    finally:
        for p, grad in zip(parameters, earlier, strict=True):
            p.grad = grad
    seed = torch.zeros((), device=loss.device, requires_grad=True)
    return _Deposit.apply(loss, seed, parameters, accumulated)


class _Deposit(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, loss: Any, seed: Any, parameters: Any, accumulated: Any) -> Any:
        ctx.parameters, ctx.accumulated = parameters, accumulated
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        if ctx.accumulated is None:
            raise ShardwiseError("backward has run already; it runs once for each step")
        accumulated, ctx.accumulated = ctx.accumulated[::-1], None
        for p in ctx.parameters:
            grad = accumulated.pop()
            if grad is not None:
                scaled = grad * gradients[0].to(grad.dtype)
                p.grad = scaled if p.grad is None else p.grad.add_(scaled)
            # Not kept while the next is scaled.
            del grad
        return None, torch.zeros_like(gradients[0], dtype=torch.float32), None, None
