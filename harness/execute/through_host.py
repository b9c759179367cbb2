"""Collectives of ranks that share one GPU, which NCCL refuses: gloo on copies in the host's memory.

The program is the one that runs under NCCL: where it asks for the back end, it is told that.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.distributed as dist

from shardwise.execute.communication import COLLECTIVES


class _Done:
    """A finished `dist.Work`."""

    def wait(self) -> None:
        """Returns at once."""


@cache
def install() -> None:
    """Replaces the collectives of torch.distributed in this process, once."""
    originals = {name: getattr(dist, name) for name in COLLECTIVES}
    for name, collective in originals.items():
        setattr(dist, name, _through_host(collective))
    dist.reduce_scatter_tensor = _reduce_scatter(originals["all_reduce"])
    dist.get_backend = lambda group=None: "nccl"


def _through_host(collective: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, async_op: bool = False, **kwargs: Any) -> Any:
        given = [(x, x.cpu()) if isinstance(x, torch.Tensor) else (x, x) for x in args]
        collective(*(there for _, there in given), **kwargs)
        for here, there in given:
            if isinstance(here, torch.Tensor):
                here.copy_(there)
        return _Done() if async_op else None

    return run


def _reduce_scatter(all_reduce: Callable[..., Any]) -> Callable[..., Any]:
    def run(part: Any, whole: Any, group: Any = None, async_op: bool = False) -> Any:
        summed = whole.cpu()
        if summed is whole:
            summed = whole.clone()
        all_reduce(summed, group=group)
        start = dist.get_rank(group) * part.numel()
        part.copy_(summed.view(-1).narrow(0, start, part.numel()).view(part.shape))
        return _Done() if async_op else None

    return run
