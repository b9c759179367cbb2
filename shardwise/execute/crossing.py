"""Crossings: forward moves a tensor to another layout, backward moves its gradient back.

The gradient of a tensor has its own layout (`sharding/operator_layouts.py`): where a share reads
all of an input, the gradient from local backward is one term of a sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from shardwise.execute.block_mesh import BlockMesh
from shardwise.execute.collectives import Change, change, run
from shardwise.execute.peers import Members
from shardwise.execute.rank_mesh import RankMesh
from shardwise.execute.reshare import reshare_of
from shardwise.execute.routed import Rows

LOCAL = ("slice", "mask")
"""The steps that take no collective."""


@dataclass(frozen=True)
class Route:
    """The forward and backward steps of a crossing of a tensor of global `shape`.

    `differentiable` says, where ranks run different operators, whether the tensor has a gradient:
    all must then agree on it. None leaves it to what autograd recorded. Where `rows` are sent to
    experts, a call takes the experts that they have chosen too.
    """

    mesh: RankMesh
    shape: tuple[int, ...]
    forward: tuple[Change, ...]
    backward: tuple[Change, ...]
    differentiable: bool | None = None
    rows: Rows | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing happens in either direction."""
        return not self.forward and not self.backward

    @property
    def is_local(self) -> bool:
        """Whether no rank waits for another, forward or backward."""
        return all(step.operation in LOCAL for step in (*self.forward, *self.backward))

    def __call__(self, x: torch.Tensor, *chosen: torch.Tensor) -> torch.Tensor:
        """Returns the local part in the other layout; differentiable."""
        if torch.is_grad_enabled() and self.differentiable not in (None, x.requires_grad):
            x = x.detach().requires_grad_(self.differentiable)
        if x.requires_grad and torch.is_grad_enabled():
            return _Crossing.apply(x, self, *chosen)
        return self.move(x, *chosen)

    def move(self, x: torch.Tensor, *chosen: torch.Tensor) -> torch.Tensor:
        """Does the same without recording for autograd."""
        return self.along(self.forward, x, *chosen)

    def along(self, path: Sequence[Change], x: torch.Tensor, *chosen: torch.Tensor) -> torch.Tensor:
        """Returns the local part after the steps of a path."""
        if self.rows is None:
            return run(x, path, self.mesh, self.shape)
        for step in path:
            if self.rows.concerns(step):
                x = self.rows.change(x, step, self.mesh, *chosen)
            else:
                x = change(x, step, self.mesh, self.shape)
        return x


class _Crossing(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, route: Route, *chosen: torch.Tensor) -> torch.Tensor:
        ctx.route, ctx.chosen = route, chosen
        return route.move(x, *chosen)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        route: Route = ctx.route
        moved = route.along(route.backward, gradients[0], *ctx.chosen)
        return moved, None, *(None for _ in ctx.chosen)


def prepare_groups(
    mesh: RankMesh, path: Sequence[Change], shape: Sequence[int], needed: set[Members]
) -> None:
    """Creates the process groups of a path; every rank must do so in the same order.

    Those of devices of several kinds are added to `needed` instead, to be created later.
    """
    for step in path:
        at = mesh if step.mesh is None else step.mesh
        if step.source is not None:
            moved = reshare_of(step.source, at, step.after, tuple(shape))
            if moved.concerns and moved.sends:
                needed.add(moved.members)
        elif step.operation not in LOCAL:
            if isinstance(at, BlockMesh):
                at.need(step.axes)
            else:
                at.group(step.axes)
