"""Computes the counts of a curve one after another or in several processes.

A count may be skipped if it is proven no faster than fewer devices with the others idle
(docs/adr/0091). The counts known by then change only the effort, not the curve.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Protocol

from msgspec.structs import replace

from shardwise.answers.count_limit import CountLimit, TooLong
from shardwise.answers.curve_assembly import with_idle
from shardwise.answers.curve_points import point_progress
from shardwise.answers.side_by_side import Parts
from shardwise.cost.options import Options, Progress, go_on, quiet
from shardwise.documents.curve import Curve, CurvePoint, fastest_s, fits
from shardwise.documents.questions import Gpus
from shardwise.texts import counted


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
        """Yields each waiting count or bundle with its curve, or that it took too long, as
        `side_by_side.Parts.each` does.

        Raises `Cancelled` if `progress` returns False.
        """

        def here(place: Gpus) -> Curve | TooLong:
            done = len(self.parts)
            one = point_progress(progress, self._text(place, done), done, self._of)
            return self.part(place, one, self.fewer(place))

        def look(last: Gpus) -> None:
            done = len(self.parts)
            go_on(progress, self._text(last, done), done / self._of)

        apart = Counts(self.question, (), {}, self.limit_s)
        parts = Parts(here, apart.part, look, lambda place: (quiet, self.fewer(place)))
        yield from parts.each(self.waiting, processes)

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
