"""How long a step communicates: times every collective alone, without the wait for other ranks.

While a `CommunicationClock` is on, each collective of torch.distributed starts and ends with a
barrier of all ranks and is waited for, and its seconds are added up. So the step must be the same
program on all ranks; where it is not, as on devices of several kinds, the barriers are of the ranks
that take part in the collective. Asynchronous calls complete at once: nothing overlaps, and the
rest of the step is computation. That is what the cost model adds up (TensorOpt Eq. 2 and 3);
overlap in an ordinary step shows in that step's time. Copies that pack and unpack count as part of
what they move (`counted`), as in the cost of re-scheduling.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from time import perf_counter
from typing import Any, ClassVar, ParamSpec, Self, TypeVar

import torch
import torch.distributed as dist

COLLECTIVES = (
    "all_reduce",
    "all_gather_into_tensor",
    "reduce_scatter_tensor",
    "all_to_all_single",
    "broadcast",
    "reduce",
)


P = ParamSpec("P")
R = TypeVar("R")


def counted(function: Callable[P, R]) -> Callable[P, R]:
    """Marks all of `function` as communication: its collectives and the copies around them."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        clock = CommunicationClock.running
        if clock is None:
            return function(*args, **kwargs)
        return clock.around(function, *args, **kwargs)

    return call


class CommunicationClock:
    """A context that counts `seconds`, `waited_s` (for other ranks) and `calls` by collective.

    `collectives_s` are the seconds of each collective on this rank, in order; `seconds` are theirs
    and those of the copies around them. `everyone`: barriers are of all ranks, which run one
    program.
    """

    running: ClassVar[CommunicationClock | None] = None

    def __init__(self, device: torch.device, *, everyone: bool = True) -> None:
        self._everyone = everyone
        self.seconds = 0.0
        self.waited_s = 0.0
        self.collectives_s: list[float] = []
        self.calls: dict[str, int] = {}
        self._device = device
        self._before: dict[str, Callable[..., Any]] = {}

    def __enter__(self) -> Self:
        for name in COLLECTIVES:
            self._before[name] = getattr(dist, name)
            setattr(dist, name, self._timed(name, self._before[name]))
        CommunicationClock.running = self
        return self

    def __exit__(self, *error: object) -> None:
        CommunicationClock.running = None
        for name, function in self._before.items():
            setattr(dist, name, function)

    def around(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls `function` and counts the time it spends outside the collectives it calls."""
        began, known = self._now(), self.seconds + self.waited_s
        result = function(*args, **kwargs)
        self.seconds += self._now() - began - (self.seconds + self.waited_s - known)
        return result

    def _timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            wanted = kwargs.pop("async_op", False)
            group = None if self._everyone else kwargs.get("group")
            began = self._now()
            dist.barrier(group)
            ready = self._now()
            function(*args, **kwargs)
            ended = self._now()
            # Otherwise a rank that is done computes and, on shared cores, slows down the others'
            # collective.
            dist.barrier(group)
            self.waited_s += ready - began + self._now() - ended
            self.seconds += ended - ready
            self.collectives_s.append(ended - ready)
            self.calls[name] = self.calls.get(name, 0) + 1
            return _Done() if wanted else None

        return timed

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return perf_counter()


class Silence:
    """A context in which collectives of torch.distributed send nothing and return at once.

    Results have the right shapes, and what this rank alone can put into them: for operators that
    are run again only to take time (`measure/slowed.py`).
    """

    def __enter__(self) -> Self:
        self._before = {name: getattr(dist, name) for name in COLLECTIVES}
        for name in COLLECTIVES:
            setattr(dist, name, _silent(_ALONE.get(name, _nothing)))
        return self

    def __exit__(self, *error: object) -> None:
        for name, function in self._before.items():
            setattr(dist, name, function)


def _silent(alone: Callable[..., None]) -> Callable[..., Any]:
    def silent(*args: Any, async_op: bool = False, **kwargs: Any) -> Any:
        alone(*args)
        return _Done() if async_op else None

    return silent


def _nothing(*args: Any) -> None:
    """Leaves what is summed or sent in place as it is."""


def _gathered_alone(output: Any, own: Any, *args: Any) -> None:
    output.view(-1, own.numel()).copy_(own.view(1, -1))


def _scattered_alone(output: Any, given: Any, *args: Any) -> None:
    output.copy_(given[: len(output)])


def _swapped_alone(output: Any, *args: Any) -> None:
    output.zero_()


_ALONE: dict[str, Callable[..., None]] = {
    "all_gather_into_tensor": _gathered_alone,
    "reduce_scatter_tensor": _scattered_alone,
    "all_to_all_single": _swapped_alone,
}
"""What this rank does by itself where a collective fills another tensor."""


class _Done:
    """A `dist.Work` that has completed."""

    def wait(self, timeout: Any = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def get_future(self) -> Any:
        future: Any = torch.futures.Future()
        future.set_result(None)
        return future
