"""Computes the counts of a curve one after another or in several processes.

A count may be skipped if it is proven no faster than fewer devices with the others idle
(docs/adr/0091). The counts known by then change only the effort, not the curve.
"""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from math import inf
from multiprocessing import active_children, get_context
from time import monotonic
from typing import Protocol

from msgspec.structs import replace

from shardwise.answers.count_limit import CountLimit, TooLong
from shardwise.answers.curve_assembly import with_idle
from shardwise.answers.curve_points import point_progress
from shardwise.child_process import die_with_parent
from shardwise.cost.options import Options, Progress, go_on, quiet
from shardwise.documents.curve import Curve, CurvePoint, fastest_s, fits
from shardwise.documents.questions import Gpus
from shardwise.errors import InternalError
from shardwise.texts import counted

ALONE_S = 5.0
"""Seconds after which the remaining counts get processes, which take one or two seconds to
start."""
LOOK_EVERY_S = 0.2
"""Seconds between checks for cancellation."""


class AnyQuestion(Protocol):
    """A curve query, answered count by count (`curve.CurveQuestion`)."""

    @property
    def options(self) -> Options: ...
    @property
    def places(self) -> Sequence[Gpus]: ...
    def part(self, place: Gpus, progress: Progress = ..., cutoff_s: float = ...) -> Curve: ...


@dataclass(frozen=True)
class Counts:
    """The counts or bundles of a query, `waiting` in their order.

    `parts` are the known ones, to which the caller adds what it gets. `limit_s` is the time limit
    per count (None: no limit).
    """

    question: AnyQuestion
    waiting: Sequence[Gpus]
    parts: Mapping[Gpus, Curve]
    limit_s: float | None

    def each(self, progress: Progress, processes: int) -> Iterator[tuple[Gpus, Curve | TooLong]]:
        """Yields each waiting count or bundle with its curve, or that it took too long: one after
        another, and after `ALONE_S` from several processes, in the order of completion.

        Raises `Cancelled` if `progress` returns False.
        """
        started = monotonic()
        for done, place in enumerate(self.waiting):
            left = self.waiting[done:]
            if min(processes, len(left)) > 1 and monotonic() - started > ALONE_S:
                yield from self._side_by_side(left, progress, processes)
                return
            yield place, self._here(place, progress)

    def _here(self, place: Gpus, progress: Progress) -> Curve | TooLong:
        done = len(self.parts)
        one = point_progress(progress, self._text(place, done), done, self._of)
        return self.part(place, one, self.fewer(place))

    def _side_by_side(
        self, places: Sequence[Gpus], progress: Progress, processes: int
    ) -> Iterator[tuple[Gpus, Curve | TooLong]]:
        """Yields as `each`, from several processes; counts of a killed process are computed
        here."""
        waiting, running = list(places), dict[Future[Curve | TooLong], Gpus]()
        asked = pickle.dumps((self.question, self.limit_s))
        few, others = min(processes, len(places)), active_children()
        pool = ProcessPoolExecutor(few, get_context("spawn"), _begin, (os.getpid(), asked))
        try:
            while waiting or running:
                while waiting and len(running) < few:
                    place = waiting.pop(0)
                    running[pool.submit(_compute, place, self.fewer(place))] = place
                done = len(self.parts)
                last = self._text(next(reversed(running.values())), done)
                go_on(progress, last, done / self._of)
                for future in wait(running, LOOK_EVERY_S, FIRST_COMPLETED).done:
                    part = future.result()
                    yield running.pop(future), part
        except BrokenProcessPool:
            for place in [*running.values(), *waiting]:
                yield place, self._here(place, progress)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in active_children():
                if process not in others:
                    process.terminate()

    def part(self, place: Gpus, progress: Progress, fewer: CurvePoint | None) -> Curve | TooLong:
        """Returns the curve of one count or bundle, or that it took too long; if `fewer` devices
        are proven as fast, their point with idle devices."""
        overlap = self.question.options.overlap
        cutoff_s = (None if fewer is None else fastest_s(fewer, overlap)) or inf
        try:
            if self.limit_s is None:
                part = self.question.part(place, progress, cutoff_s)
            else:
                with CountLimit(progress, self.limit_s) as limited:
                    part = self.question.part(place, limited, cutoff_s)
        except TooLong as reason:
            return reason
        (point,) = part.points
        if fewer is None or point.nodes is None or (fastest_s(point, overlap) or inf) < cutoff_s:
            return part
        return replace(part, points=[with_idle(fewer, point.gpus)], does_not_fit=[])

    def fewer(self, place: Gpus) -> CurvePoint | None:
        """Returns the fastest known point below a count."""
        overlap = self.question.options.overlap
        points = [
            part.points[0]
            for other, part in self.parts.items()
            if isinstance(place, int) and isinstance(other, int) and other < place
        ]
        return min(
            (point for point in points if fits(point)),
            key=lambda point: fastest_s(point, overlap) or inf,
            default=None,
        )

    @property
    def _of(self) -> int:
        return len(self.question.places)

    def _text(self, place: Gpus, done: int) -> str:
        return place_text(place, done, self._of)


def place_text(place: Gpus, done: int, of: int) -> str:
    """Returns the count or bundle in words."""
    what = counted(place, "GPU") if isinstance(place, int) else place
    return f"{what} ({done + 1} of {of})"


_asked: Counts | None = None
"""The query of a worker process."""


def _begin(parent: int, asked: bytes) -> None:
    """Prepares a worker process: it has one thread, ends with its parent, and ignores Ctrl-C, which
    the parent handles."""
    global _asked
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["RAYON_NUM_THREADS"] = "1"
    question, limit_s = pickle.loads(asked)
    _asked = Counts(question, (), {}, limit_s)


def _compute(place: Gpus, fewer: CurvePoint | None) -> Curve | TooLong:
    if _asked is None:
        raise InternalError("a process that was not begun for a curve")
    return _asked.part(place, quiet, fewer)
