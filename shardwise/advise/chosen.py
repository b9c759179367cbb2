"""Of the searches of a question, one per number of micro-batches: which point to take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite

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


def fastest(searches: Sequence[Search]) -> Chosen | None:
    """The fastest point that fits the memory limit; None when none does."""
    fitting = [
        Chosen(found, point)
        for found in searches
        if (point := found.fastest_within(found.limit_bytes)) is not None
    ]
    return min(fitting, key=lambda chosen: chosen.time_s, default=None)


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

    None when nothing is proven.
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
    leanest = min(searches, key=_least_bytes)
    found, least = leanest, _least_bytes(leanest)
    limit = f"the limit is {found.limit_bytes / 2**30:.1f} GiB"
    if found.options.method == TOFU:
        return f"Tofu's strategy needs {least / 2**30:.1f} GiB per GPU, {limit}"
    qualifier = "" if found.solution.exact else "about "
    reason = f"needs {qualifier}{least / 2**30:.1f} GiB per GPU at the least, {limit}"
    if found.options.recompute == "never":
        reason += " (running forward again in backward keeps less: recompute auto)"
    return reason


def _least_bytes(found: Search) -> float:
    return float(found.memory_bytes[0]) if len(found.memory_bytes) else inf
