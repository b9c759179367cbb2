"""Computes independent parts of an answer one after another or in several processes."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import active_children, get_context
from time import monotonic
from typing import Any, Generic, TypeVar

from shardwise.child_process import die_with_parent
from shardwise.errors import InternalError

ALONE_S = 5.0
"""Seconds after which the remaining parts get processes, which take one or two seconds to start."""
LOOK_EVERY_S = 0.2
"""Seconds between checks for cancellation."""

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Parts(Generic[T, R]):
    """Parts of an answer.

    `here` computes one in this process. In others `compute` does, which is pickled; its arguments
    after the part are what `arguments` returns in this process when the part begins. `look` is
    called in short intervals with the part that began last, and may raise to end all.
    """

    here: Callable[[T], R]
    compute: Callable[..., R]
    look: Callable[[T], None]
    arguments: Callable[[T], tuple[Any, ...]] = lambda part: ()

    def each(self, parts: Sequence[T], processes: int) -> Iterator[tuple[T, R]]:
        """Yields each part with its result: one after another, and after `ALONE_S` from several
        processes, in the order of completion. Raises what `here` and `look` raise."""
        started = monotonic()
        for done, part in enumerate(parts):
            left = parts[done:]
            if min(processes, len(left)) > 1 and monotonic() - started > ALONE_S:
                yield from self._side_by_side(left, processes)
                return
            yield part, self.here(part)

    def _side_by_side(self, parts: Sequence[T], processes: int) -> Iterator[tuple[T, R]]:
        """Yields as `each`, from several processes; what a killed process leaves is computed
        here."""
        waiting, running = list(parts), dict[Future[R], T]()
        few, others = min(processes, len(parts)), active_children()
        given = os.getpid(), pickle.dumps(self.compute)
        pool = ProcessPoolExecutor(few, get_context("spawn"), _begin, given)
        try:
            while waiting or running:
                while waiting and len(running) < few:
                    part = waiting.pop(0)
                    running[pool.submit(_compute, part, *self.arguments(part))] = part
                self.look(next(reversed(running.values())))
                for future in wait(running, LOOK_EVERY_S, FIRST_COMPLETED).done:
                    result = future.result()
                    yield running.pop(future), result
        except BrokenProcessPool:
            for part in [*running.values(), *waiting]:
                yield part, self.here(part)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in active_children():
                if process not in others:
                    process.terminate()


_asked: Callable[..., Any] | None = None
"""What a worker process computes."""


def _begin(parent: int, asked: bytes) -> None:
    """Prepares a worker process: it has one thread, ends with its parent, and ignores Ctrl-C, which
    the parent handles."""
    global _asked
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["RAYON_NUM_THREADS"] = "1"
    _asked = pickle.loads(asked)


def _compute(*arguments: Any) -> Any:
    if _asked is None:
        raise InternalError("a process that was not begun for an answer")
    return _asked(*arguments)
