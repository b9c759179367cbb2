"""Which point to take from a question's searches, one per number of micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite

import numpy as np

from shardwise.cost.options import TOFU
from shardwise.search.search import Search


@dataclass(frozen=True)
class Chosen:
    """A point of a search."""

    search: Search
    point: int

    @property
    def memory_bytes(self) -> float:
        return float(self.search.memory_bytes[self.point])

    @property
    def time_s(self) -> float:
        return float(self.search.time_s[self.point])

    @property
    def peak_bytes(self) -> float:
        """The peak of the replayed step."""
        return float(self.search.replayed.peak_bytes[self.point])

    @property
    def replayed_time_s(self) -> float:
        """The time with communication overlapped."""
        return float(self.search.replayed.time_s[self.point])

    @property
    def ranking_s(self) -> float:
        """The time that ranks it."""
        return float(self.search.ranking_s[self.point])

    @property
    def fits(self) -> bool:
        """Whether the replayed step fits the memory limit."""
        return bool(self.search.fits[self.point])


def fastest(searches: Sequence[Search]) -> Chosen | None:
    """Returns the fastest point whose replayed step fits the memory limit; None when none does."""
    fitting = [
        Chosen(search, int(point)) for search in searches for point in np.flatnonzero(search.fits)
    ]
    return min(fitting, key=lambda chosen: (chosen.ranking_s, chosen.peak_bytes), default=None)


def lowest_peak(searches: Sequence[Search]) -> Chosen:
    """Returns the point with the lowest peak."""
    points = [Chosen(search, i) for search in searches for i in range(len(search.time_s))]
    return min(points, key=lambda chosen: (chosen.peak_bytes, chosen.ranking_s))


def merge_frontiers(searches: Sequence[Search]) -> list[Chosen]:
    """Returns the points that no point of any search beats, ascending in memory."""
    points = [Chosen(search, i) for search in searches for i in range(len(search.time_s))]
    points.sort(key=lambda chosen: (chosen.memory_bytes, chosen.time_s))
    kept: list[Chosen] = []
    for chosen in points:
        if not kept or chosen.time_s < kept[-1].time_s:
            kept.append(chosen)
    return kept


def time_gap(searches: Sequence[Search], chosen: Chosen) -> float | None:
    """Returns how much longer than the shortest possible time the chosen one is at most (relative).

    Where replayed times were searched it is about those, of every strategy that fits; otherwise
    about sums, of the strategies whose summed memory was searched. None when nothing is proven.
    """
    bounds = [_least_time(search) for search in searches]
    known = [bound for bound in bounds if bound is not None]
    if len(known) < len(bounds):
        return None
    bound = min(known, default=inf)
    time_s = chosen.time_s if chosen.search.proof is None else chosen.replayed_time_s
    return max(time_s / bound - 1.0, 0.0) if bound > 0 else None


def _least_time(search: Search) -> float | None:
    """Returns a lower bound of the time within the memory limit; None when nothing is proven."""
    if search.proof is not None:
        return search.proof.bound_s if search.proof.bound_s > 0.0 else None
    if search.solution.time_lower_bound_s is not None:
        return float(search.solution.time_lower_bound_s) + search.problem.fixed_time_s
    chosen = search.fastest_within(search.limit_bytes)
    epsilon = float(search.solution.epsilon)
    if not (search.solution.exact or isfinite(epsilon)):
        return None
    if chosen is None:
        return inf
    return float(search.time_s[chosen]) / (1.0 if search.solution.exact else 1.0 + epsilon)


def too_large(searches: Sequence[Search]) -> str:
    """Returns the reason why nothing fits."""
    search = min(searches, key=_least_bytes)
    least = _least_bytes(search)
    limit = f"the limit is {search.limit_bytes / 2**30:.1f} GiB"
    if search.options.method == TOFU:
        return f"Tofu's strategy needs {least / 2**30:.1f} GiB per GPU, {limit}"
    # The strategy with the least sum need not have the least peak.
    qualifier = "" if len(search.time_s) == 1 and search.solution.exact else "about "
    reason = f"needs {qualifier}{least / 2**30:.1f} GiB per GPU at the least, {limit}"
    if search.options.recompute == "never":
        reason += " (running forward again in backward keeps less: recompute auto)"
    return reason


def _least_bytes(search: Search) -> float:
    return float(search.replayed.peak_bytes.min(initial=inf))
