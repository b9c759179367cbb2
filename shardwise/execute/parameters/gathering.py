"""ZeRO 3: a parameter is whole only while it is used (Rajbhandari et al. 2020, §5.3).

A whole parameter is a fresh tensor that is freed with its last user. The store also keeps the one
gathered last, so that consecutive operators share it; in backward, until its gradient is complete.
What backward needs of it is not kept but gathered again (`saved.py`).

Whether a collective is called must never depend on whether memory is still alive: communication
threads release it at their own time, different on each rank.
"""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from shardwise.errors import ShardwiseError
from shardwise.execute.parameters.spec import Placement
from shardwise.execute.saved import SavedTensors


class Gatherer:
    """Gathers the parameters of a store; `saved`, if set, makes backward gather them again."""

    def __init__(self) -> None:
        self.saved: SavedTensors | None = None
        self._last: tuple[GatheredParameter, tuple[int, int]] | None = None
        self._flat: Any = None

    def flat(self, owner: GatheredParameter) -> torch.Tensor:
        """Returns the whole padded parameter; collective unless it was gathered last."""
        now = (owner, owner.written)
        if self._last != now:
            self.drop()
            self._flat = owner.gather()
            self._last = now
        flat: torch.Tensor = self._flat
        return flat

    def flat_for_use(self, owner: GatheredParameter) -> torch.Tensor:
        """Does the same; what autograd saves of it will be gathered again."""
        flat = self.flat(owner)
        if self.saved is not None and torch.is_grad_enabled():
            self.saved.register(flat, partial(self._regather, owner, owner.written))
        return flat

    def _regather(self, owner: GatheredParameter, written: tuple[int, int]) -> torch.Tensor:
        if owner.written != written:
            raise ShardwiseError(
                f"parameter {owner.placement.name} was changed between forward and backward"
            )
        return self.flat(owner)

    def done(self, owner: GatheredParameter | None) -> None:
        """Drops the parameter if it was gathered last: its gradient is complete."""
        if self._last is not None and self._last[0] is owner:
            self.drop()

    def drop(self) -> None:
        """Keeps no parameter whole any more."""
        self._last = self._flat = None


class GatheredParameter:
    """A parameter of which this rank keeps a shard; `parameter` is what the optimizer gets."""

    def __init__(self, placement: Placement, device: torch.device, gatherer: Gatherer) -> None:
        self.placement = placement
        self._gatherer = gatherer
        if placement.present:
            placement.mesh.group(placement.sharding)  # created on all ranks in the same order
        self._shard = torch.empty(placement.shard, dtype=placement.dtype, device=device)
        own = self._shard[: len(placement.own)]
        self.parameter = torch.nn.Parameter(own, requires_grad=placement.carries_gradient)
        # What the graph differentiates: a shape without memory.
        self.leaf = torch.empty(placement.local_shape, dtype=placement.dtype, device=device)
        self.leaf.untyped_storage().resize_(0)
        self.leaf.requires_grad_(placement.carries_gradient)
        # The leaf must not keep its owner alive: the shard would wait for the garbage collector.
        me = weakref.ref(self)
        if placement.carries_gradient:
            self.leaf.register_post_accumulate_grad_hook(lambda _: gatherer.done(me()))
        self.steps = 0
        """Optimizer steps that may have written the shard."""

    @property
    def written(self) -> tuple[int, int]:
        """A value that changes when the shard is written."""
        # Fused optimizers do not increase versions, and manual writes are not steps.
        return self.parameter._version, self.steps

    def use(self) -> torch.Tensor:
        """Returns the whole local part, differentiable; collective unless gathered last."""
        flat = self._gatherer.flat_for_use(self)
        if torch.is_grad_enabled() and self.parameter.requires_grad:
            whole: torch.Tensor = _Gathered.apply(self.leaf, flat, self.placement)
            return whole
        return _local(flat, self.placement)

    def local(self) -> torch.Tensor:
        """Returns the whole local part, outside autograd; collective unless gathered last."""
        return _local(self._gatherer.flat(self), self.placement)

    def gather(self) -> torch.Tensor:
        """Returns the whole local part, flat and padded, in new memory; collective."""
        place = self.placement
        if not place.present:
            return self._shard.new_empty(0)
        if place.shares is not None:
            return gather_owned(place, self._shard)
        flat = self._shard.new_empty(place.shard * place.parts)
        dist.all_gather_into_tensor(flat, self._shard, group=place.mesh.group(place.sharding))
        return flat

    def load(self, local: torch.Tensor) -> None:
        """Takes this rank's shard of a local part."""
        with torch.no_grad():
            own = self.placement.own
            self.parameter.copy_(local.reshape(-1)[own.start : own.stop])


def gather_owned(place: Placement, shard: torch.Tensor) -> torch.Tensor:
    """Returns the whole local part, flat, of which each rank has the elements that it owns."""
    flat = shard.new_empty(place.elements)
    flat[place.own.start : place.own.stop].copy_(shard)
    for work in begin_owned(place, flat):
        work.wait()
    return flat


def begin_owned(place: Placement, flat: torch.Tensor) -> list[Any]:
    """Begins to bring what each rank owns to all of them; a broadcast for each that owns any."""
    mesh, group = place.mesh, place.mesh.group(place.sharding)
    return [
        dist.broadcast(
            flat[share.start : share.stop], mesh.world_rank(rank), group=group, async_op=True
        )
        for rank, share in zip(mesh.members(place.sharding), place.owned, strict=True)
        if len(share)
    ]


def _local(flat: torch.Tensor, place: Placement) -> torch.Tensor:
    return flat[: place.elements].view(place.local_shape)


class _Gathered(torch.autograd.Function):  # type: ignore[misc]
    """Links a leaf without memory to the whole parameter: gradients go to the leaf."""

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor, flat: torch.Tensor, place: Placement) -> torch.Tensor:
        return _local(flat, place)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0], None, None
