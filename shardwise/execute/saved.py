"""What autograd keeps for backward: some tensors are rebuilt when needed instead of kept.

Tensors that a strategy rebuilds (TensorOpt §4.2, tensor reuse; ZeRO 3) are recognised by their
storage, so that views of them are covered too. torch applies only the innermost pair of
saved-tensor hooks, so this one pair serves everything that is rebuilt. The ranks agree on when that
happens (`agreement.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol
from weakref import WeakSet

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from shardwise.errors import InternalError
from shardwise.execute.agreement import ForwardPass

Recompute = Callable[[], torch.Tensor]
"""Makes a tensor once more, with the same shape, strides and dtype."""


class Later(Protocol):
    """A stand-in for a saved tensor."""

    def tensor(self) -> torch.Tensor:
        """Returns the tensor itself."""
        ...


class _Source:
    """A tensor that is rebuilt once for everything that saved it, and freed with the last user."""

    def __init__(self, reference: StorageWeakRef | None, recompute: Recompute) -> None:
        self.reference = reference
        self.number = -1
        self._recompute: Recompute | None = recompute
        self._users: WeakSet[Rebuilt] = WeakSet()

    def saved(self, tensor: torch.Tensor) -> Rebuilt:
        """Returns what is kept of a tensor of this storage."""
        user = Rebuilt(self, tensor.size(), tensor.stride(), tensor.storage_offset())
        self._users.add(user)
        return user

    def prepare(self) -> None:
        recompute, self._recompute = self._recompute, None
        if recompute is not None:
            rebuilt = recompute()
            for user in self._users:
                user.value = rebuilt


class Cell:
    """A saved tensor that may yet turn out to be rebuilt."""

    def __init__(self, tensor: torch.Tensor, instruction: int) -> None:
        self.kept: Any = tensor
        self.instruction = instruction

    def tensor(self) -> torch.Tensor:
        """Returns the tensor, kept or rebuilt."""
        return self.kept if isinstance(self.kept, torch.Tensor) else self.kept.tensor()


class Rebuilt:
    """A saved tensor of which only the way to rebuild it is kept.

    Once rebuilt, the tensor is kept until autograd releases this object.
    """

    def __init__(
        self, source: _Source, size: torch.Size, stride: tuple[int, ...], offset: int
    ) -> None:
        self.source = source
        self.value: torch.Tensor | None = None
        self._place = (size, stride, offset)

    def tensor(self) -> torch.Tensor:
        """Returns the tensor, rebuilt."""
        self.source.prepare()
        if self.value is None:
            raise InternalError("a tensor that backward reads was not rebuilt")
        return self.value.as_strided(*self._place)


class SavedTensors:
    """The tensors of one rank's forward passes that are rebuilt when backward needs them.

    While `other` is set, it decides what to keep of tensors that are not registered. With `late`, a
    tensor may be registered after it was saved.
    """

    def __init__(self) -> None:
        # A weak reference keeps the address of a storage from being reused.
        self._sources: dict[int, _Source] = {}
        self._cells: dict[int, list[Cell]] = {}
        self.forward_pass = ForwardPass(None)
        self.other: Callable[[torch.Tensor], Any] | None = None
        self.late = False

    def register(self, tensor: torch.Tensor, recompute: Recompute) -> int:
        """Makes backward rebuild whatever autograd saves of this tensor's storage with `recompute`.

        `recompute` returns a tensor of the same shape. Parts of larger storages are kept unchanged.
        Returns its number in the forward pass.
        """
        size, stride = tensor.size(), tensor.stride()
        storage = tensor.untyped_storage()
        if storage.nbytes() != tensor.numel() * tensor.element_size():
            # Other ranks may rebuild it, with this one's help.
            return self.forward_pass.add(_Source(None, recompute))

        def alike() -> torch.Tensor:
            rebuilt = recompute()
            if rebuilt.stride() == stride and rebuilt.storage_offset() == 0:
                return rebuilt
            return rebuilt.new_empty_strided(size, stride).copy_(rebuilt)

        reference = StorageWeakRef(storage)
        source = self._sources[reference.cdata] = _Source(reference, alike)
        source.number = self.forward_pass.add(source)
        for cell in self._cells.pop(reference.cdata, ()):
            self.forward_pass.wanted.add((source.number, cell.instruction))
            cell.kept = source.saved(cell.kept)
        return source.number

    def keep(self, tensor: torch.Tensor) -> Any:
        """Returns what is kept of a tensor: itself, or (`Rebuilt`) how to rebuild it."""
        source = self._sources.get(tensor.untyped_storage()._cdata)
        return tensor if source is None else source.saved(tensor)

    def need(self, kept: Any, by: int) -> None:
        """Records that a thing is rebuilt from what was kept of a tensor."""
        if isinstance(kept, Rebuilt):
            self.forward_pass.needed.add((kept.source.number, by))

    def pack(self, tensor: torch.Tensor) -> Any:
        """Returns what is kept of a tensor that autograd saves."""
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
        """Returns the tensor for what was kept of it."""
        return kept if isinstance(kept, torch.Tensor) else kept.tensor()

    def clear(self) -> None:
        """Forgets storages; called when a forward pass is over."""
        self._sources.clear()
        self._cells.clear()

    @contextlib.contextmanager
    def hooks(self) -> Iterator[None]:
        """Lets `pack` decide what is kept of saved tensors within this context."""
        with torch.autograd.graph.saved_tensors_hooks(self.pack, self.unpack):
            yield
