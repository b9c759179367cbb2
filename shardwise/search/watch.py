"""Progress and time limit of a search."""

from __future__ import annotations

from math import inf
from time import monotonic

from shardwise.cost.options import Progress, go_on


class OutOfTime(Exception):
    """The time limit of the search has passed."""


class Watch:
    """Reports an interval of a search, given by its first and last share of the whole, within a
    time limit (s).

    All parts of one watch have the same end; each counts its own seconds. A `strict` limit also
    ends the computation of costs, though not before `least_costing_s`.
    """

    def __init__(
        self,
        progress: Progress,
        time_limit_s: float | None = None,
        *,
        strict: bool = False,
        least_costing_s: float = 0.0,
    ) -> None:
        self._progress = progress
        self.strict = strict
        self._first, self._last = 0.0, 1.0
        self._started = monotonic()
        self._until = inf if time_limit_s is None else self._started + time_limit_s
        self._costs_until = max(self._until, self._started + least_costing_s)

    def part(self, first: float, last: float) -> Watch:
        """Returns the watch of a part of this interval."""
        part = Watch(self._progress, strict=self.strict)
        width = self._last - self._first
        part._first, part._last = self._first + first * width, self._first + last * width
        part._until, part._costs_until = self._until, self._costs_until
        return part

    def within(self, share: float) -> Watch:
        """Returns the watch of the same interval that ends after a share of the remaining time.

        Costs may still be computed up to the end of this one.
        """
        part = self.part(0.0, 1.0)
        part._until = part._started + share * (self._until - part._started)
        return part

    def again(self, share: float, whole: Watch) -> Watch:
        """Returns the watch of the same interval with a share of the time that `whole` has left,
        for one that had a share before."""
        part = self.part(0.0, 1.0)
        part._until = whole._until
        return part.within(share)

    def report(self, stage: str, fraction: float) -> bool:
        """Reports a fraction of the interval; returns whether to go on."""
        return self._progress(stage, self._first + fraction * (self._last - self._first))

    def costing(self, stage: str, fraction: float) -> bool:
        """Reports a fraction of computing costs; a strict watch may raise `OutOfTime`."""
        going = self.report(stage, fraction)
        if self.strict and self.is_over_for_costs:
            raise OutOfTime
        return going

    def go_on(self, stage: str, fraction: float) -> None:
        """Reports a fraction; raises `Cancelled` or `OutOfTime` if the search has to end."""
        go_on(self.report, stage, fraction)
        if monotonic() > self._until:
            raise OutOfTime

    @property
    def left_s(self) -> float:
        """Remaining seconds, always positive."""
        return max(self._until - monotonic(), 1e-3)

    @property
    def is_over(self) -> bool:
        """Whether the time limit has passed."""
        return monotonic() > self._until

    @property
    def is_over_for_costs(self) -> bool:
        """Whether the time in which costs may be computed has passed."""
        return monotonic() > self._costs_until

    @property
    def spent_share(self) -> float:
        """The share of the time limit that has passed; 0 without one."""
        return self.spent_s / max(self._until - self._started, 1e-3)

    @property
    def spent_s(self) -> float:
        """Seconds since the interval began."""
        return monotonic() - self._started
