"""The fastest strategies among some configurations, by a few eliminations and replays.

An answer's neighbours are compared by them (`answers/neighbours.py`). The first strategy is the
cheapest under the game's time charges; if it does not fit, the next ones have a price on memory.
Each query moves half of the weight to the previous strategy's longest path. Then windows of one
strategy are put into another. All are replayed; the fastest is good, but not proven optimal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, isfinite

import numpy as np
from numpy.typing import NDArray

from shardwise.cost.part import Masks
from shardwise.replay.bound import StepBound, with_host
from shardwise.replay.linear import LinearStep
from shardwise.replay.moments import Moments
from shardwise.replay.owner_costs import OwnerCosts, priced
from shardwise.search.chosen import Chosen
from shardwise.search.elimination import cheapest
from shardwise.search.improve import Choices, Improver, Pool
from shardwise.search.search import Charges, Search
from shardwise.search.watch import Watch
from shardwise.sharding.layout import Floats

MOST_COUNTS = 3
"""Micro-batch counts that are tried."""
PRICES = (0.01, 0.1, 10.0)
"""Prices of the whole limit, tried in turn until something fits."""
FINEST = 16
"""The shortest window, as a part of all segments."""
STAGE = "neighbours"

Allowed = Callable[[Search], Masks | None]
"""Returns the configurations allowed in a search, or None."""


@dataclass(frozen=True)
class Candidate:
    """A strategy of a search, choices (groups,) and (edges,), and its replayed step."""

    search: Search
    choices: Choices
    edge_choices: Choices
    peak_bytes: float
    time_s: float

    @classmethod
    def of(cls, chosen: Chosen) -> Candidate:
        """Returns a point of a search."""
        search, at = chosen.search, chosen.point
        choices, edges = search.solution.choices[at], search.solution.edge_choices[at]
        return cls(search, choices, edges, chosen.peak_bytes, chosen.replayed_time_s)

    @property
    def fits(self) -> bool:
        """Whether the replayed step fits the memory limit."""
        return self.peak_bytes <= self.search.limit_bytes


def fastest_allowed(
    searches: Sequence[Search], first: Search, allowed: Allowed, watch: Watch
) -> Candidate | None:
    """Returns the fastest strategy found that fits, or else the one of the least peak.

    Tries `first`, then the searches that may hold a faster one. None if no search allows any.
    Raises `Cancelled`, `OutOfTime`, and `SolverError` if an elimination runs out of time or memory.
    """
    tried: list[_Within] = []
    for search, charges in _in_order(searches, first):
        if _bound_s(search) >= min((one.time_s for one in tried), default=inf):
            continue
        masks = allowed(search)
        if masks is not None:
            tried.append(_Within(search, charges, masks, watch))
            tried[-1].ask()
    for one in sorted(tried, key=lambda one: one.rank):
        if max(one.fastest_s, _bound_s(one.search)) < min(other.time_s for other in tried):
            one.make_fit()
    best = min(tried, key=lambda one: one.rank, default=None)
    if best is None:
        return None
    best.refine()
    return best.best


def joined(search: Search, strategy: Candidate) -> Search:
    """Returns the search with one more strategy among its points."""
    solution, replayed = search.solution, search.replayed
    points = Pool(solution.choices, solution.edge_choices, replayed.peak_bytes, replayed.time_s)
    more = points.joined(_pool_of(strategy)).solution(
        search.problem,
        search.limit_bytes,
        _bound_s(search),
        status=solution.status,
        seconds=solution.seconds,
    )
    return replace(search, solution=more)


def _pool_of(strategy: Candidate) -> Pool:
    return Pool(
        strategy.choices[None, :],
        strategy.edge_choices[None, :],
        np.array([strategy.peak_bytes]),
        np.array([strategy.time_s]),
    )


def _in_order(searches: Sequence[Search], first: Search) -> list[tuple[Search, Charges]]:
    """Returns the first search, those of the least bounds, and that of the most micro-batches, each
    with its game's charges; searches without a game are left out."""
    others = sorted((s for s in searches if s.charges and s is not first), key=_bound_s)
    if len(others) >= MOST_COUNTS:
        most = max(others, key=lambda search: search.micro_batches)
        others = [search for search in others if search is not most]
        others[MOST_COUNTS - 2 :] = [most]
    return [(s, s.charges) for s in (first, *others) if s.charges is not None]


def _bound_s(search: Search) -> float:
    """Returns a lower bound in seconds on every strategy that fits; 0 without a proof."""
    return 0.0 if search.proof is None else search.proof.bound_s(search.limit_bytes)


class _Within:
    """The strategies of one search within some configurations."""

    def __init__(self, search: Search, charges: Charges, masks: Masks, watch: Watch) -> None:
        self.search = search
        self._masks = masks
        self._watch = watch
        self._bound = StepBound(search.own_replayer)
        self._linear = LinearStep(search.own_replayer)
        self._charges = self._time = charges.time
        self._priced = charges.held
        self._last: Floats | None = None
        self._pool = self._known()

    @property
    def time_s(self) -> float:
        """The time of the fastest that fits; infinite if none does."""
        return self._pool.time_within(self.search.limit_bytes)

    @property
    def fastest_s(self) -> float:
        """The time of the fastest, whether it fits or not."""
        return float(self._pool.time_s.min())

    @property
    def rank(self) -> tuple[float, float]:
        """The best strategy's excess over the limit, then its time."""
        return self._pool.rank(self.search.limit_bytes)

    @property
    def best(self) -> Candidate:
        """The fastest that fits, or else the one of the least peak."""
        pool, at = self._pool, self._pool.best(self.search.limit_bytes)
        return Candidate(
            self.search,
            pool.choices[at],
            pool.edge_choices[at],
            float(pool.peak_bytes[at]),
            float(pool.time_s[at]),
        )

    def ask(self, price: float = 0.0) -> None:
        """Adds the cheapest strategy, with memory at a price (seconds per byte)."""
        self._watch.go_on(STAGE, 1.0)
        replayer, options = self.search.replayer, self.search.options
        if self._last is not None and price == 0.0:
            path = self._linear.weighted(self._bound.longest(self._last).weights[0])
            self._time = priced([(0.5, self._time), (0.5, path)])
        self._charges = self._time
        if price > 0.0:
            self._charges = priced([(1.0, self._time), (price, self._held)])
        answer = cheapest(
            self.search.problem,
            self._charges,
            allowed=self._masks,
            time_limit_s=self._watch.left_s if isfinite(self._watch.left_s) else None,
            memory_limit_bytes=options.search_memory_bytes,
            threads=options.threads,
            progress=lambda _, __: self._watch.report(STAGE, 1.0),
        )
        choices, edge_choices = answer.choices[None, :], answer.edge_choices[None, :]
        values = replayer.values(choices, edge_choices)
        host_s = replayer.host_times(choices, edge_choices)
        replayed = replayer.replay_values(values, host_s)
        self._last = with_host(values[0], host_s)
        self._add(Pool(choices, edge_choices, replayed.peak_bytes, replayed.time_s))

    def make_fit(self) -> None:
        """Adds strategies of less memory if the fastest does not fit."""
        fastest_s = self.fastest_s
        for price in PRICES:
            self.ask(price * fastest_s / self.search.limit_bytes)
            if isfinite(self.time_s):
                break
        if isfinite(self.time_s):
            self._mix()

    def refine(self) -> None:
        """Adds strategies near the fastest if it fits."""
        if self.fastest_s == self.time_s:
            self.ask()
            self._mix()

    def _mix(self) -> None:
        """Adds the best with windows of the fastest ones, and if one of those does not fit, that
        one with windows of the best."""
        pool, limit = self._pool, self.search.limit_bytes
        best = pool.choices[pool.best(limit)]
        made: list[Choices] = []
        for number in np.argsort(pool.time_s)[:2].tolist():
            other = pool.choices[number]
            made += self._stretches(best, other)
            if pool.peak_bytes[number] > limit:
                made += self._stretches(other, best)
        if made:
            improver = Improver(self.search.replayer, self._charges, limit)
            self._add(improver.replayed(np.unique(np.stack(made), axis=0)))

    def _add(self, pool: Pool) -> None:
        self._pool = self._pool.joined(pool)

    def _stretches(self, best: Choices, donor: Choices) -> Iterator[Choices]:
        """Yields a strategy with windows of segments from another."""
        segment, count = self._segments
        length = -(-count // 2)
        while length * FINEST >= count and length >= 1:
            for start in range(0, count, max(length // 2, 1)):
                inside = (segment >= start) & (segment < start + length)
                if (inside & (best != donor)).any():
                    yield np.where(inside, donor, best)
            length //= 2

    @cached_property
    def _segments(self) -> tuple[NDArray[np.int64], int]:
        """The segment of each group, and how many there are."""
        names, segment = np.unique(self.search.problem.context.segments, return_inverse=True)
        return segment, len(names)

    @cached_property
    def _held(self) -> OwnerCosts:
        """The priced memory."""
        replayer = self.search.own_replayer
        return self._priced or Moments(replayer).held(replayer.last_backward)

    def _known(self) -> Pool:
        """Returns the points of the search that are allowed."""
        solution, replayed = self.search.solution, self.search.replayed
        allowed = np.ones(len(solution.choices), dtype=bool)
        for g, mask in enumerate(self._masks):
            allowed &= mask[solution.choices[:, g]]
        return Pool(
            solution.choices[allowed],
            solution.edge_choices[allowed],
            replayed.peak_bytes[allowed],
            replayed.time_s[allowed],
        )
