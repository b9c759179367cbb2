"""Which point to take from a question's searches, one per number of micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite

import numpy as np

from shardwise.cost.options import NEVER, TOFU
from shardwise.search.gaps import unbeaten
from shardwise.search.search import Search
from shardwise.sharding.layout import Floats


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
    """Returns the fastest point whose replayed step fits the memory limit, or None."""
    fitting = [
        Chosen(search, int(point)) for search in searches for point in np.flatnonzero(search.fits)
    ]
    return min(fitting, key=lambda chosen: (chosen.ranking_s, chosen.peak_bytes), default=None)


def lowest_peak(searches: Sequence[Search]) -> Chosen:
    """Returns the point with the lowest peak."""
    points = [Chosen(search, i) for search in searches for i in range(len(search.time_s))]
    return min(points, key=lambda chosen: (chosen.peak_bytes, chosen.ranking_s))


def merge_frontiers(searches: Sequence[Search]) -> list[Chosen]:
    """Returns the points of all searches that none of them beats, by ascending memory.

    Compares replayed peaks and times, or sums if sums were searched.
    """
    points = [Chosen(search, i) for search in searches for i in range(len(search.time_s))]
    memory, time = axes(points)
    return [points[i] for i in unbeaten(memory, time).tolist()]


def axes(points: Sequence[Chosen]) -> tuple[Floats, Floats]:
    """Returns the memory (bytes) and time (seconds) by which points are compared."""
    if points and points[0].search.options.replays:
        memory = [point.peak_bytes for point in points]
        time = [point.replayed_time_s for point in points]
    else:
        memory = [point.memory_bytes for point in points]
        time = [point.time_s for point in points]
    return np.array(memory), np.array(time)


def time_gap(searches: Sequence[Search], chosen: Chosen) -> float | None:
    """Returns an upper bound on how much slower the chosen point is than the optimum (relative).

    The optimum is over replayed times of every strategy that fits, or over sums of the searched
    strategies if sums were searched. None if nothing is proven.
    """
    bounds = [_least_time(search) for search in searches]
    known = [bound for bound in bounds if bound is not None]
    if len(known) < len(bounds):
        return None
    bound = min(known, default=inf)
    time_s = chosen.time_s if chosen.search.proof is None else chosen.replayed_time_s
    return max(time_s / bound - 1.0, 0.0) if bound > 0 else None


def gap_at(searches: Sequence[Search], chosen: Chosen) -> float | None:
    """Returns how much faster a strategy with no higher peak may be (relative).

    None if sums were searched or nothing is proven.
    """
    proofs = [search.proof for search in searches if search.proof is not None]
    if len(proofs) < len(searches):
        return None
    bound = min(proof.bound_s(chosen.peak_bytes) for proof in proofs)
    return max(chosen.replayed_time_s / bound - 1.0, 0.0) if bound > 0 else None


def _least_time(search: Search) -> float | None:
    """Returns a lower bound on the time within the memory limit, or None if nothing is proven."""
    if search.proof is not None:
        return search.proof.bound_s(search.limit_bytes) or None
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
    # The least sum need not have the least peak.
    qualifier = "" if len(search.time_s) == 1 and search.solution.exact else "about "
    reason = f"needs {qualifier}{least / 2**30:.1f} GiB per GPU at the least, {limit}"
    if search.options.recomputation == NEVER:
        reason += " (running forward again in backward keeps less: recompute auto)"
    return reason


def _least_bytes(search: Search) -> float:
    return float(search.replayed.peak_bytes.min(initial=inf))
