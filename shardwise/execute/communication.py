"""How long a step communicates: every collective timed alone, apart from waiting for others.

While a `CommunicationClock` is on, each collective of torch.distributed starts with a barrier of
its group, is waited for, and its seconds are added up. What is asked for asynchronously is done at
once: nothing overlaps, so the rest of the step is computation. That is what the cost model adds up
(TensorOpt Eq. 2 and 3); what overlaps in an ordinary step is seen in its time.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any, Self

import torch
import torch.distributed as dist

COLLECTIVES = (
    "all_reduce",
    "all_gather_into_tensor",
    "reduce_scatter_tensor",
    "all_to_all_single",
    "broadcast",
)


class CommunicationClock:
    """A context; afterwards `seconds` and `waited_s` (for other ranks), `calls` by collective."""

    def __init__(self, device: torch.device) -> None:
        self.seconds = 0.0
        self.waited_s = 0.0
        self.calls: dict[str, int] = {}
        self._device = device
        self._before: dict[str, Callable[..., Any]] = {}

    def __enter__(self) -> Self:
        for name in COLLECTIVES:
            self._before[name] = getattr(dist, name)
            setattr(dist, name, self._timed(name, self._before[name]))
        return self

    def __exit__(self, *error: object) -> None:
        for name, function in self._before.items():
            setattr(dist, name, function)

    def _timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            wanted = kwargs.pop("async_op", False)
            began = self._now()
            dist.barrier(group=kwargs.get("group"))
            ready = self._now()
            function(*args, **kwargs)
            ended = self._now()
            self.waited_s += ready - began
            self.seconds += ended - ready
            self.calls[name] = self.calls.get(name, 0) + 1
            return _Done() if wanted else None

        return timed

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return perf_counter()


class _Done:
    """A `dist.Work` that has ended."""

    def wait(self, timeout: Any = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True
