"""How far a search is, and whether it goes on: progress and a time limit."""

from __future__ import annotations

from math import inf
from time import monotonic

from shardwise.cost.options import Progress, go_on


class OutOfTime(Exception):
    """The time limit of the search has passed."""


class Watch:
    """Reports a stretch of a search, its first and last share of it all, within a time limit (s).

    All parts of one watch have the same end; each counts the seconds that pass in it.
    """

    def __init__(self, progress: Progress, time_limit_s: float | None = None) -> None:
        self._progress = progress
        self._first, self._last = 0.0, 1.0
        self._started = monotonic()
        self._until = inf if time_limit_s is None else self._started + time_limit_s

    def part(self, first: float, last: float) -> Watch:
        """Returns the watch of a part of this stretch."""
        part = Watch(self._progress)
        width = self._last - self._first
        part._first, part._last = self._first + first * width, self._first + last * width
        part._until = self._until
        return part

    def report(self, stage: str, fraction: float) -> bool:
        """Reports a fraction of the stretch; returns whether to go on."""
        return self._progress(stage, self._first + fraction * (self._last - self._first))

    def go_on(self, stage: str, fraction: float) -> None:
        """Reports a fraction; raises `Cancelled` or `OutOfTime` where the search is to end."""
        go_on(self.report, stage, fraction)
        if monotonic() > self._until:
            raise OutOfTime

    @property
    def left_s(self) -> float:
        """The seconds that are left, at least a little."""
        return max(self._until - monotonic(), 1e-3)

    @property
    def is_over(self) -> bool:
        """Whether the time limit has passed."""
        return monotonic() > self._until

    @property
    def spent_share(self) -> float:
        """How much of the time up to the limit has passed; 0 without one."""
        return self.spent_s / max(self._until - self._started, 1e-3)

    @property
    def spent_s(self) -> float:
        """The seconds since the stretch began."""
        return monotonic() - self._started
