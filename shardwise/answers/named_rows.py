"""A frontier for people: the strategies to decide between, and how rows differ."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np
from msgspec import UNSET, UnsetType

from shardwise.answers.named import Named, named_strategies
from shardwise.answers.neighbours import left_s
from shardwise.answers.summary import Summaries
from shardwise.answers.uniform import Uniform
from shardwise.cost.options import Progress
from shardwise.documents.frontier import MOST_NAMED, WITHIN, NamedStrategy
from shardwise.search.chosen import Chosen, fastest
from shardwise.search.mixed.search import MixedSearch
from shardwise.search.neighbours import Candidate
from shardwise.search.search import Search
from shardwise.search.watch import Watch

FEWEST = 5
"""Minimum number of named strategies, even if others beat them."""
SAME = 2e-3
"""Relative: closer steps and peaks count as one strategy."""


def named_rows(
    searches: Sequence[Search], summaries: Summaries, progress: Progress
) -> list[NamedStrategy] | UnsetType:
    """Returns the strategies to decide between, the fastest first, and the simplest among equals.
    Beaten ones are left out, the slowest first, as long as more than `FEWEST` are left."""
    options, best = searches[0].options, fastest(searches)
    if not options.replays or isinstance(searches[0], MixedSearch):
        return UNSET
    if best is None:
        return []
    own = Candidate.of(best)
    kept: list[Named] = []
    least_bytes: dict[Uniform, float] = {}
    for named in named_strategies(searches, Watch(progress, left_s(searches))):
        one = named.strategy
        # Recomputation is for less memory.
        worth = one.peak_bytes < least_bytes.get(named.wanted, inf)
        least_bytes.setdefault(named.wanted, one.peak_bytes)
        same = any(_alike(one, other.strategy) for other in kept)
        if one.time_s <= (1.0 + WITHIN) * own.time_s and worth and not same:
            kept.append(named)
    found = [(named.label, named.strategy) for named in kept]
    while len(found) > FEWEST:
        beaten = [row for row in found if any(_beats(other, row[1]) for _, other in found)]
        if len(found) < MOST_NAMED and not beaten:
            break
        found.remove(max(beaten or found, key=lambda row: row[1].time_s))
    if not any(_alike(own, one) for _, one in found):
        label = summaries.label(best.search, best.point)
        if label in (name for name, _ in found):
            label = summaries.labels(best.search).mixed(own.choices)
        found.append((label, own))
    found.sort(key=lambda row: row[1].time_s)
    smallest_bytes = min(one.peak_bytes for _, one in found)
    return [
        NamedStrategy(
            label=label,
            micro_batches=one.search.micro_batches,
            replayed_time_s=one.time_s,
            replayed_peak_bytes=round(one.peak_bytes),
            slower=one.time_s / found[0][1].time_s - 1.0,
            more_bytes=round(one.peak_bytes - smallest_bytes),
        )
        for label, one in found
    ]


def _alike(one: Candidate, other: Candidate) -> bool:
    return (
        abs(one.time_s / other.time_s - 1.0) < SAME
        and abs(one.peak_bytes / other.peak_bytes - 1.0) < SAME
    )


def _beats(one: Candidate, other: Candidate) -> bool:
    return one.time_s < other.time_s and one.peak_bytes < other.peak_bytes


class Differences:
    """Describes how frontier points with the same label differ."""

    def __init__(self) -> None:
        self._last: dict[str, Chosen] = {}

    def of(self, label: str, point: Chosen) -> str | UnsetType:
        """Returns the differences of a point from the previous one with its label."""
        last = self._last.get(label)
        self._last[label] = point
        if last is None:
            return UNSET
        return f"other {', '.join(f'{what} of {n}' for what, n in _changes(last, point) if n)}"


def _changes(before: Chosen, after: Chosen) -> list[tuple[str, int]]:
    """Returns the numbers of groups and crossings whose choices differ between two points of one
    micro-batch count, by feature."""
    one, two = (c.search.solution.choices[c.point] for c in (before, after))
    edges = [c.search.solution.edge_choices[c.point] for c in (before, after)]
    split = sharding = again = 0
    for cost, a, b in zip(before.search.problem.costs, one.tolist(), two.tolist(), strict=True):
        split += not np.array_equal(cost.assignment[a], cost.assignment[b])
        sharding += (cost.zero[a], cost.zero_axes[a]) != (cost.zero[b], cost.zero_axes[b])
        again += bool(cost.recompute[a] != cost.recompute[b])
    counts = (split, sharding, again, int((edges[0] != edges[1]).sum()))
    return list(zip(("split", "ZeRO", "recompute", "kept copies"), counts, strict=True))
