"""How much memory tensors take: tracks each storage from its first tensor until it is freed.

On CPUs the tracker sees every operator that reaches the dispatcher, in forward, backward and the
update. It does not see what a kernel allocates internally: CPU kernels pack weights and unfold
images, which says nothing about a GPU. On GPUs the allocator does the counting
(`torch.cuda.max_memory_allocated`).
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class AllocationTracker(TorchDispatchMode):  # type: ignore[misc]
    """Bytes of the storages now alive, and the most there ever were at once.

    `at_peak` lists the storages at the peak, largest first, with the operator that made them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now_bytes = 0
        self.peak_bytes = 0
        self.at_peak: list[tuple[int, str]] = []
        self.log: list[tuple[str, int]] = []
        self._sizes: dict[int, tuple[int, str]] = {}
        # Communication threads free tensors too.
        self._lock = threading.RLock()

    def follow(self, tensors: Iterable[Any], why: str) -> None:
        """Counts the storages of these tensors from now on, until they are freed."""
        for tensor in tensors:
            if not isinstance(tensor, torch.Tensor) or tensor.device.type != "cpu":
                continue
            storage = tensor.untyped_storage()
            with self._lock:
                if storage._cdata not in self._sizes:
                    self._sizes[storage._cdata] = (storage.nbytes(), why)
                    self.now_bytes += storage.nbytes()
                    weakref.finalize(storage, self._freed, storage._cdata)
        with self._lock:
            if self.now_bytes > self.peak_bytes:
                self.peak_bytes = self.now_bytes
                self.at_peak = sorted(self._sizes.values(), reverse=True)

    def _freed(self, key: int) -> None:
        with self._lock:
            self.now_bytes -= self._sizes.pop(key)[0]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.add.Tensor and _would_add_in_place(*args):
            out = args[0].add_(args[1])
        else:
            out = func(*args, **(kwargs or {}))
        self.follow(tree_leaves(out), str(func))
        self.log.append((str(func), self.now_bytes))
        return out


def _would_add_in_place(first: Any, second: Any) -> bool:
    """Returns whether autograd would add in place to the first one if no dispatch mode were on.

    torch/csrc/autograd/input_buffer.cpp: it does so when it holds the last reference (here there is
    one more, ours), and never while a dispatch mode is on.
    """
    if torch.is_grad_enabled() or torch._C._current_autograd_node() is None:
        return False
    if not isinstance(second, torch.Tensor) or first.shape != second.shape:
        return False
    references = torch._C._storage_Use_Count(first.untyped_storage()._cdata)
    return bool(references == 2 and first.is_contiguous())
