"""Crossings: forward moves a tensor to another layout, backward moves its gradient back.

The gradient of a tensor has its own layout (`sharding/operator_layouts.py`): where a share reads
all of an input, the gradient from local backward is one term of a sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from shardwise.execute.collectives import Change, run
from shardwise.execute.rank_mesh import RankMesh

LOCAL = ("slice", "mask")
"""The steps that take no collective."""


@dataclass(frozen=True)
class Route:
    """The forward and backward steps of a crossing of a tensor of global `shape`."""

    mesh: RankMesh
    shape: tuple[int, ...]
    forward: tuple[Change, ...]
    backward: tuple[Change, ...]

    @property
    def is_empty(self) -> bool:
        """Whether nothing happens in either direction."""
        return not self.forward and not self.backward

    @property
    def is_local(self) -> bool:
        """Whether no rank waits for another, forward or backward."""
        return all(step.operation in LOCAL for step in (*self.forward, *self.backward))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the local part in the other layout; differentiable."""
        if x.requires_grad and torch.is_grad_enabled():
            return _Crossing.apply(x, self)
        return self.move(x)

    def move(self, x: torch.Tensor) -> torch.Tensor:
        """Does the same without recording for autograd."""
        return run(x, self.forward, self.mesh, self.shape)


class _Crossing(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, route: Route) -> torch.Tensor:
        ctx.route = route
        return route.move(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        route: Route = ctx.route
        return run(gradients[0], route.backward, route.mesh, route.shape), None


def prepare_groups(mesh: RankMesh, path: Sequence[Change]) -> None:
    """Creates the process groups of a path; every rank must do so in the same order."""
    for step in path:
        if step.operation not in LOCAL:
            mesh.group(step.axes)
