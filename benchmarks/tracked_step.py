"""Real training steps on CPU tensors with every allocation of a tensor tracked.

The tracker sees each operator that reaches the dispatcher, in forward, backward and the update,
and follows every storage from its first tensor until it is freed. What a kernel takes for itself
inside is not seen.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


@dataclass
class AllocationTracker(TorchDispatchMode):
    """Bytes of the storages alive; `peak_bytes` since the last `restart`."""

    now_bytes: int = 0
    peak_bytes: int = 0
    peak_at: str = ""
    log: list[tuple[str, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self._known: dict[int, weakref.ref[Any]] = {}
        self.sizes: dict[int, tuple[int, str]] = {}
        self.at_peak: list[tuple[int, str]] = []
        self.keep_log = False

    def follow(self, tensors: Iterable[Any], why: str = "given") -> None:
        """Count the storages of these tensors from now on."""
        for tensor in tensors:
            if not isinstance(tensor, torch.Tensor) or tensor.device.type != "cpu":
                continue
            storage = tensor.untyped_storage()
            key = storage._cdata
            if key in self._known:
                continue
            size = storage.nbytes()
            self._known[key] = weakref.ref(storage)
            self.sizes[key] = (size, why)
            self.now_bytes += size
            weakref.finalize(storage, self._freed, key, size)
        if self.now_bytes > self.peak_bytes:
            self.peak_bytes, self.peak_at = self.now_bytes, why
            if self.keep_log:
                self.at_peak = sorted(self.sizes.values(), reverse=True)

    def _freed(self, key: int, size: int) -> None:
        if self._known.pop(key, None) is not None:
            self.now_bytes -= size
            del self.sizes[key]

    def restart(self) -> None:
        self.peak_bytes = self.now_bytes
        self.log.clear()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.follow(tree_leaves(out), str(func))
        if self.keep_log:
            self.log.append((str(func), self.now_bytes))
        return out
