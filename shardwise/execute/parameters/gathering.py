"""ZeRO 3: a parameter is whole only while it is used (Rajbhandari et al. 2020, §5.3).

A whole parameter is a fresh tensor that goes with its last user; beside them the store keeps the
one that was gathered last, so that operators in a row share it. What backward needs is not kept:
hooks for saved tensors (`torch.autograd.graph.saved_tensors_hooks`) replace a whole parameter, and
views of it, by a note of where it comes from, and gather it again when backward asks.

Whether a collective is called must never hang on whether memory is still alive: communication
threads let go of it at a time of their own, on each rank another.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.multiprocessing.reductions import StorageWeakRef

from shardwise.errors import ShardwiseError
from shardwise.execute.parameters.spec import Placement


class Note(NamedTuple):
    """Stands for a view of a whole parameter that autograd would have kept."""

    owner: GatheredParameter
    version: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


class Gatherer:
    """Gathers the parameters of a store, and knows which memory holds whole ones."""

    def __init__(self) -> None:
        self._owners: dict[int, tuple[Any, GatheredParameter]] = {}
        self._last: tuple[GatheredParameter, int] | None = None
        self._flat: Any = None

    def flat(self, owner: GatheredParameter) -> torch.Tensor:
        """The whole parameter with its padding; collective unless it was gathered last."""
        now = (owner, owner.parameter._version)
        if self._last != now:
            self.drop()
            self._flat = owner.gather()
            self._last = now
            self._note(self._flat, owner)
        flat: torch.Tensor = self._flat
        return flat

    def drop(self) -> None:
        """Keeps no parameter whole any more."""
        self._last = self._flat = None

    def _note(self, flat: torch.Tensor, owner: GatheredParameter) -> None:
        for memory in [m for m, _ in self._owners.values() if m.expired()]:
            del self._owners[memory.cdata]
        memory = StorageWeakRef(flat.untyped_storage())
        self._owners[memory.cdata] = (memory, owner)

    def pack(self, tensor: torch.Tensor) -> Any:
        """For `saved_tensors_hooks`: a note for what lies in a whole parameter, else `tensor`."""
        # An address stands for one storage only as long as a weak reference to it is kept.
        found = self._owners.get(tensor.untyped_storage()._cdata)
        if found is None:
            return tensor
        owner = found[1]
        version = owner.parameter._version
        return Note(owner, version, tensor.size(), tensor.stride(), tensor.storage_offset())

    def unpack(self, kept: Any) -> torch.Tensor:
        """For `saved_tensors_hooks`: what `pack` was given."""
        if type(kept) is not Note:
            found: torch.Tensor = kept
            return found
        owner = kept.owner
        if owner.parameter._version != kept.version:
            raise ShardwiseError(
                f"parameter {owner.placement.name} was changed between forward and backward"
            )
        return owner.local().as_strided(kept.size, kept.stride, kept.offset)


class GatheredParameter:
    """A parameter of which this rank keeps a shard; `parameter` is what the optimizer has."""

    def __init__(self, placement: Placement, device: torch.device, gatherer: Gatherer) -> None:
        self.placement = placement
        self._gatherer = gatherer
        self._group = placement.mesh.group(placement.sharding)
        self._shard = torch.empty(placement.shard, dtype=placement.dtype, device=device)
        self.parameter = torch.nn.Parameter(self._shard[: len(placement.own)])
        # What the graph differentiates: a shape without memory.
        self.leaf = torch.empty(placement.local_shape, dtype=placement.dtype, device=device)
        self.leaf.untyped_storage().resize_(0)
        self.leaf.requires_grad_()

    def use(self) -> torch.Tensor:
        """The whole local part, differentiable; collective unless it was gathered last."""
        if torch.is_grad_enabled() and self.parameter.requires_grad:
            whole: torch.Tensor = _Gather.apply(self.leaf, self)
            return whole
        return self.local()

    def local(self) -> torch.Tensor:
        """The whole local part, outside autograd; collective unless it was gathered last."""
        place = self.placement
        return self._gatherer.flat(self)[: place.elements].view(place.local_shape)

    def gather(self) -> torch.Tensor:
        """The whole local part, flat and padded, in new memory; collective."""
        place = self.placement
        flat = self._shard.new_empty(place.shard * place.parts)
        dist.all_gather_into_tensor(flat, self._shard, group=self._group)
        return flat

    def load(self, local: torch.Tensor) -> None:
        """Takes this rank's shard of a local part."""
        with torch.no_grad():
            own = self.placement.own
            self.parameter.copy_(local.reshape(-1)[own.start : own.stop])


class _Gather(torch.autograd.Function):
    """From a leaf without memory to the whole parameter; the gradient goes to the leaf."""

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor, owner: GatheredParameter) -> torch.Tensor:
        return owner.local()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0], None
