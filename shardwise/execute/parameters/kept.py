"""Parameters of which this rank keeps the whole local part: ZeRO 0, 1 and 2.

Under ZeRO 1 and 2 the optimizer gets a view of this rank's shard; after it has written its shard,
the other shards are gathered in place before the next use.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from shardwise.execute.parameters.gathering import begin_owned
from shardwise.execute.parameters.spec import Placement


class WholeParameter:
    """ZeRO 0, and whatever gets no gradient."""

    def __init__(self, placement: Placement, device: torch.device) -> None:
        self.placement = placement
        tensor = torch.empty(placement.local_shape, dtype=placement.dtype, device=device)
        self.parameter = torch.nn.Parameter(tensor, requires_grad=placement.carries_gradient)
        self.leaf = self.parameter.detach().requires_grad_(placement.carries_gradient)

    def use(self) -> torch.Tensor:
        """Returns the local part, differentiable."""
        if self.leaf.requires_grad is not self.parameter.requires_grad:
            return self.parameter.detach()
        return self.leaf

    def local(self) -> torch.Tensor:
        """Returns the local part, outside autograd."""
        return self.parameter.detach()

    def load(self, local: torch.Tensor) -> None:
        """Takes a local part."""
        with torch.no_grad():
            self.parameter.copy_(local)


class SpreadParameter:
    """ZeRO 1 and 2; all of `together` are gathered when one of them is needed."""

    def __init__(
        self, placement: Placement, device: torch.device, together: list[SpreadParameter]
    ) -> None:
        self.placement = placement
        self._together = together
        together.append(self)
        if placement.present:
            placement.mesh.group(placement.sharding)  # created on all ranks in the same order
        size, own = placement.shard, placement.own
        owned = placement.shares is not None
        elements = placement.elements if owned else size * placement.parts
        self._whole = torch.empty(elements, dtype=placement.dtype, device=device)
        # Writes to `.data` do not change the version: only the optimizer's writes should.
        self._flat = self._whole.data
        start = own.start if owned else size * placement.mesh.index(placement.sharding)
        self._shard = self._flat[start : start + size]
        self._local = self._whole[: placement.elements].view(placement.local_shape)
        self.leaf = self._local.detach().requires_grad_()
        self.parameter = torch.nn.Parameter(self._whole[start : start + len(own)])
        self.steps = 0
        """Optimizer steps that may have written the shard."""
        self._seen = (self._whole._version, 0)
        self._works: list[Any] = []

    @property
    def _written(self) -> tuple[int, int]:
        # Fused optimizers do not increase versions, and manual writes are not steps.
        return self._whole._version, self.steps

    def use(self) -> torch.Tensor:
        """Returns the local part, differentiable; collective after an update."""
        if self._written != self._seen:
            for each in self._together:
                each.begin_refresh()
        self._wait()
        return self.leaf if self.parameter.requires_grad else self.leaf.detach()

    def begin_refresh(self) -> None:
        """Begins to gather the shards if the optimizer has written them."""
        if self._written != self._seen:
            self._seen = self._written
            self._wait()
            place = self.placement
            if not place.present:
                return
            if place.shares is not None:
                self._works = begin_owned(place, self._flat)
                return
            group = place.mesh.group(place.sharding)
            self._works = [
                dist.all_gather_into_tensor(self._flat, self._shard, group=group, async_op=True)
            ]

    def _wait(self) -> None:
        for work in self._works:
            work.wait()
        self._works = []

    def local(self) -> torch.Tensor:
        """Returns the local part, outside autograd; collective after an update."""
        return self.use().detach()

    def load(self, local: torch.Tensor) -> None:
        """Takes a local part."""
        with torch.no_grad():
            self._local.copy_(local)
        self._seen = self._written
