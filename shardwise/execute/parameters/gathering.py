"""ZeRO 3: a parameter is whole only while it is used (Rajbhandari et al. 2020, §5.3).

Whole parameters are fresh tensors that nothing but their users keeps: when an operator has read
one, it goes. What backward needs of it is not kept either: hooks for saved tensors
(`torch.autograd.graph.saved_tensors_hooks`) replace it, and views of it, by a note of where it
comes from, and gather it again when backward asks.
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


class Register:
    """Which memory holds whole parameters now."""

    def __init__(self) -> None:
        self._owners: dict[int, GatheredParameter] = {}

    def exchange(self, gone: Any, come: Any, owner: GatheredParameter) -> None:
        """Memory `come` (weak references to storages) takes the place of `gone`, if any."""
        if gone is not None:
            self._owners.pop(gone.cdata, None)
        self._owners[come.cdata] = owner

    def pack(self, tensor: torch.Tensor) -> Any:
        """For `saved_tensors_hooks`: a note for what lies in a whole parameter, else `tensor`."""
        # An address stands for one storage only as long as a weak reference to it is kept.
        owner = self._owners.get(tensor.untyped_storage()._cdata)
        if owner is None:
            return tensor
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

    def __init__(self, placement: Placement, device: torch.device, register: Register) -> None:
        self.placement = placement
        self._register = register
        self._group = placement.mesh.group(placement.sharding)
        self._shard = torch.empty(placement.shard, dtype=placement.dtype, device=device)
        self.parameter = torch.nn.Parameter(self._shard[: len(placement.own)])
        # What the graph differentiates: a shape without memory.
        self.leaf = torch.empty(placement.local_shape, dtype=placement.dtype, device=device)
        self.leaf.untyped_storage().resize_(0)
        self.leaf.requires_grad_()
        self._memory: Any = None
        self._version = -1

    def use(self) -> torch.Tensor:
        """The whole local part, differentiable; collective unless it is whole already."""
        if torch.is_grad_enabled() and self.parameter.requires_grad:
            whole: torch.Tensor = _Gather.apply(self.leaf, self)
            return whole
        return self.local()

    def local(self) -> torch.Tensor:
        """The whole local part, outside autograd; collective unless it is whole already."""
        place = self.placement
        storage = None
        if self._memory is not None and self._version == self.parameter._version:
            storage = torch.UntypedStorage._new_with_weak_ptr(self._memory.cdata)
        if storage is None:
            flat = self._gather()
        else:
            flat = self._shard.new_empty(0).set_(storage)
        return flat[: place.elements].view(place.local_shape)

    def _gather(self) -> torch.Tensor:
        place = self.placement
        flat = self._shard.new_empty(place.shard * place.parts)
        dist.all_gather_into_tensor(flat, self._shard, group=self._group)
        memory = StorageWeakRef(flat.untyped_storage())
        self._register.exchange(self._memory, memory, self)
        self._memory, self._version = memory, self.parameter._version
        return flat

    @torch.no_grad()
    def load(self, local: torch.Tensor) -> None:
        """Takes this rank's shard of a local part."""
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
