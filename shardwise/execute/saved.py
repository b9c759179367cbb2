"""What autograd keeps for backward: some tensors are not kept but made again when they are wanted.

Tensors that a strategy rebuilds (TensorOpt §4.2, tensor reuse; ZeRO 3) are recognised by their
storage, so that views of them are meant too. torch applies only the innermost pair of saved-tensor
hooks, hence this one pair for all who want something made again. When that happens the ranks agree
upon (`agreement.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol
from weakref import WeakSet

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from shardwise.execute.agreement import ForwardPass

Again = Callable[[], torch.Tensor]
"""Makes a tensor once more, of the same shape, strides and dtype."""


class Later(Protocol):
    """What stands for a saved tensor."""

    def tensor(self) -> torch.Tensor:
        """The tensor itself."""
        ...


class _Source:
    """A tensor that is made again: once for all who saved it, and freed with the last of them."""

    def __init__(self, reference: StorageWeakRef | None, again: Again) -> None:
        self.reference = reference
        self.number = -1
        self._again: Again | None = again
        self._users: WeakSet[Rebuilt] = WeakSet()

    def saved(self, tensor: torch.Tensor) -> Rebuilt:
        """What is kept of a tensor of this storage."""
        user = Rebuilt(self, tensor.size(), tensor.stride(), tensor.storage_offset())
        self._users.add(user)
        return user

    def prepare(self) -> None:
        again, self._again = self._again, None
        if again is not None:
            made = again()
            for user in self._users:
                user.made = made


class Cell:
    """A saved tensor that may yet turn out to be made again."""

    def __init__(self, tensor: torch.Tensor, instruction: int) -> None:
        self.kept: Any = tensor
        self.instruction = instruction

    def tensor(self) -> torch.Tensor:
        """The tensor, kept or made again."""
        return self.kept if isinstance(self.kept, torch.Tensor) else self.kept.tensor()


class Rebuilt:
    """A saved tensor of which only the way to make it again is kept.

    Once made it is kept until autograd lets go of this.
    """

    def __init__(
        self, source: _Source, size: torch.Size, stride: tuple[int, ...], offset: int
    ) -> None:
        self.source = source
        self.made: torch.Tensor | None = None
        self._place = (size, stride, offset)

    def tensor(self) -> torch.Tensor:
        """The tensor, made again."""
        self.source.prepare()
        assert self.made is not None
        return self.made.as_strided(*self._place)


class SavedTensors:
    """The tensors of one rank's forward passes that are made again when backward wants them.

    `other` is asked what to keep of tensors that are not registered, while it is set. With
    `late` a tensor may be registered after it was saved.
    """

    def __init__(self) -> None:
        # A weak reference keeps the address of a storage from being used by another one.
        self._sources: dict[int, _Source] = {}
        self._cells: dict[int, list[Cell]] = {}
        self.forward_pass = ForwardPass(None)
        self.other: Callable[[torch.Tensor], Any] | None = None
        self.late = False

    def register(self, tensor: torch.Tensor, again: Again) -> int:
        """Whatever autograd saves of this tensor's storage is made by `again` in backward.

        `again` gives a tensor of the same shape. Parts of larger storages are kept as they are.
        Answers the thing's number in the forward pass.
        """
        size, stride = tensor.size(), tensor.stride()
        storage = tensor.untyped_storage()
        if storage.nbytes() != tensor.numel() * tensor.element_size():
            # On other ranks it may be made again, with this one's help.
            return self.forward_pass.add(_Source(None, again))

        def alike() -> torch.Tensor:
            made = again()
            if made.stride() == stride and made.storage_offset() == 0:
                return made
            return made.new_empty_strided(size, stride).copy_(made)

        reference = StorageWeakRef(storage)
        source = self._sources[reference.cdata] = _Source(reference, alike)
        source.number = self.forward_pass.add(source)
        for cell in self._cells.pop(reference.cdata, ()):
            self.forward_pass.wanted.add((source.number, cell.instruction))
            cell.kept = source.saved(cell.kept)
        return source.number

    def keep(self, tensor: torch.Tensor) -> Any:
        """What is kept of a tensor: itself, or (`Rebuilt`) how to make it again."""
        source = self._sources.get(tensor.untyped_storage()._cdata)
        return tensor if source is None else source.saved(tensor)

    def need(self, kept: Any, by: int) -> None:
        """A thing is made from what was kept of a tensor."""
        if isinstance(kept, Rebuilt):
            self.forward_pass.needed.add((kept.source.number, by))

    def pack(self, tensor: torch.Tensor) -> Any:
        """What is kept of a tensor that autograd saves."""
        kept = self.keep(tensor)
        if kept is not tensor:
            self.forward_pass.wanted.add((kept.source.number, self.forward_pass.now))
            return kept
        if self.other is not None:
            return self.other(tensor)
        if not self.late:
            return tensor
        cell = Cell(tensor, self.forward_pass.now)
        # The tensor lives as long as its cell, which lives at least as long as this forward pass.
        self._cells.setdefault(tensor.untyped_storage()._cdata, []).append(cell)
        return cell

    def unpack(self, kept: Any) -> torch.Tensor:
        """The tensor of what was kept of it."""
        return kept if isinstance(kept, torch.Tensor) else kept.tensor()

    def clear(self) -> None:
        """Forget storages; called when a forward pass is over."""
        self._sources.clear()
        self._cells.clear()

    @contextlib.contextmanager
    def hooks(self) -> Iterator[None]:
        """Within this context tensors are kept as `pack` says."""
        with torch.autograd.graph.saved_tensors_hooks(self.pack, self.unpack):
            yield
