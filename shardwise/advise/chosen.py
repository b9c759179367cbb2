"""Of the searches of a question, one per number of micro-batches: which point to take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite

import numpy as np

from shardwise.advise.options import TOFU
from shardwise.advise.search import Search


@dataclass(frozen=True)
class Chosen:
    """A point of a search."""

    found: Search
    point: int

    @property
    def memory_bytes(self) -> float:
        return float(self.found.memory_bytes[self.point])

    @property
    def time_s(self) -> float:
        return float(self.found.time_s[self.point])

    @property
    def peak_bytes(self) -> float:
        """Of the replayed step."""
        return float(self.found.replayed.peak_bytes[self.point])

    @property
    def replayed_time_s(self) -> float:
        """With communication overlapped."""
        return float(self.found.replayed.time_s[self.point])

    @property
    def ranking_s(self) -> float:
        """The time that ranks it."""
        return float(self.found.ranking_s[self.point])

    @property
    def fits(self) -> bool:
        """Whether the replayed step fits the memory limit."""
        return bool(self.found.fits[self.point])


def fastest(searches: Sequence[Search]) -> Chosen | None:
    """The fastest point whose replayed step fits the memory limit; None when none does."""
    fitting = [
        Chosen(found, int(point)) for found in searches for point in np.flatnonzero(found.fits)
    ]
    return min(fitting, key=lambda chosen: (chosen.ranking_s, chosen.peak_bytes), default=None)


def leanest(searches: Sequence[Search]) -> Chosen:
    """The point with the lowest peak."""
    points = [Chosen(found, i) for found in searches for i in range(len(found.time_s))]
    return min(points, key=lambda chosen: (chosen.peak_bytes, chosen.ranking_s))


def together(searches: Sequence[Search]) -> list[Chosen]:
    """The points that no point of any search beats, ascending in memory."""
    points = [Chosen(found, i) for found in searches for i in range(len(found.time_s))]
    points.sort(key=lambda chosen: (chosen.memory_bytes, chosen.time_s))
    kept: list[Chosen] = []
    for chosen in points:
        if not kept or chosen.time_s < kept[-1].time_s:
            kept.append(chosen)
    return kept


def time_gap(searches: Sequence[Search], time_s: float) -> float | None:
    """How much longer than the shortest possible time this one is at most (relative).

    Both are sums, over the strategies whose memory adds up to what was searched. None when nothing
    is proven.
    """
    bounds = [_least_time(found) for found in searches]
    known = [bound for bound in bounds if bound is not None]
    if len(known) < len(bounds):
        return None
    bound = min(known, default=inf)
    return max(time_s / bound - 1.0, 0.0) if bound > 0 else None


def _least_time(found: Search) -> float | None:
    """No strategy within the memory limit is faster (seconds); None when nothing is proven."""
    if found.solution.time_lower_bound_s is not None:
        return float(found.solution.time_lower_bound_s) + found.problem.fixed_time_s
    chosen = found.fastest_within(found.limit_bytes)
    epsilon = float(found.solution.epsilon)
    if not (found.solution.exact or isfinite(epsilon)):
        return None
    if chosen is None:
        return inf
    return float(found.time_s[chosen]) / (1.0 if found.solution.exact else 1.0 + epsilon)


def too_large(searches: Sequence[Search]) -> str:
    """The reason why nothing fits."""
    found = min(searches, key=_least_bytes)
    least = _least_bytes(found)
    limit = f"the limit is {found.limit_bytes / 2**30:.1f} GiB"
    if found.options.method == TOFU:
        return f"Tofu's strategy needs {least / 2**30:.1f} GiB per GPU, {limit}"
    # The strategy with the least sum need not have the least peak.
    qualifier = "" if len(found.time_s) == 1 and found.solution.exact else "about "
    reason = f"needs {qualifier}{least / 2**30:.1f} GiB per GPU at the least, {limit}"
    if found.options.recompute == "never":
        reason += " (running forward again in backward keeps less: recompute auto)"
    return reason


def _least_bytes(found: Search) -> float:
    return float(found.replayed.peak_bytes.min(initial=inf))
