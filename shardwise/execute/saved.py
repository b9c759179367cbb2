"""What autograd keeps for backward: some tensors are not kept but made again when they are wanted.

Tensors that a strategy rebuilds (TensorOpt §4.2, tensor reuse; ZeRO 3) are recognised by their
storage, so that views of them are meant too. torch applies only the innermost pair of saved-tensor
hooks, hence this one pair for all who want something made again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

Again = Callable[[], torch.Tensor]
"""Makes a tensor once more, of the same shape, strides and dtype."""


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A saved tensor of which only the way to make it again is kept."""

    again: Again
    size: torch.Size
    stride: tuple[int, ...]
    offset: int

    def tensor(self) -> torch.Tensor:
        """The tensor, made again."""
        return self.again().as_strided(self.size, self.stride, self.offset)


class SavedTensors:
    """The tensors of one rank's forward passes that are made again when backward wants them."""

    def __init__(self) -> None:
        # A weak reference keeps the address of a storage from being used by another one.
        self._again: dict[int, tuple[StorageWeakRef, Again]] = {}

    def register(self, tensor: torch.Tensor, again: Again) -> None:
        """Whatever autograd saves of this tensor's storage is made by `again` in backward."""
        reference = StorageWeakRef(tensor.untyped_storage())
        self._again[reference.cdata] = (reference, again)

    def pack(self, tensor: torch.Tensor) -> Any:
        """What is kept of a tensor: itself, or how to make it again."""
        known = self._again.get(tensor.untyped_storage()._cdata)
        if known is None:
            return tensor
        return Rebuilt(known[1], tensor.size(), tensor.stride(), tensor.storage_offset())

    def unpack(self, kept: Any) -> torch.Tensor:
        """The tensor of what was kept of it."""
        return kept.tensor() if isinstance(kept, Rebuilt) else kept  # type: ignore[no-any-return]

    def clear(self) -> None:
        """Forget storages; called when a forward pass is over."""
        self._again.clear()

    @contextlib.contextmanager
    def hooks(self) -> Iterator[None]:
        """Within this context tensors are kept as `pack` says."""
        with torch.autograd.graph.saved_tensors_hooks(self.pack, self.unpack):
            yield
