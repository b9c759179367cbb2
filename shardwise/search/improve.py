"""Fast strategies from those that a game met: mixtures, and windows of one put into another.

The mean strategy of a game is optimal but not a strategy; good ones lie near it. Candidates are
made in batches, ranked by the game's charges, and replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from math import inf, isfinite

import numpy as np
from numpy.typing import NDArray

from shardwise import _core
from shardwise.cost.alike import alike
from shardwise.cost.assemble import SearchProblem
from shardwise.cost.crossings import EdgeTable
from shardwise.replay.owner_costs import OwnerCosts
from shardwise.replay.replay import StrategyReplayer
from shardwise.search.game import Met
from shardwise.search.gaps import unbeaten
from shardwise.search.solution import Solution
from shardwise.sharding.layout import Floats

BATCH = 96
"""Candidates that are replayed at a time."""
BATCHES = 4
"""Batches without a gain after which a strategy counts as final."""
MOST_ROUNDS = 24
SWAPS = 24
"""Configurations tried for all groups of a class."""
PAIRED = 8
"""Configurations tried for each of two classes."""
MOST_PAIRS = 32
"""Pairs of classes tried."""
NEAREST = 8
"""Strategies whose configurations are swapped if none fits."""
GAIN = 2e-5
"""Relative: smaller gains of a round are ignored."""
SHARE = 1e-3
"""Strategies with a smaller weight are left out of mixtures."""

Choices = NDArray[np.uint32]
Cheapest = tuple[NDArray[np.uint32], NDArray[np.uint32], NDArray[np.uint32], Floats]
"""For a table of edges: rows of sources, columns of targets, and per pair (R, C) the cheapest
alternative and its cost."""


@dataclass(frozen=True)
class Pool:
    """Replayed strategies: choices (S, groups) and (S, edges), peaks and times (S,)."""

    choices: Choices
    edge_choices: Choices
    peak_bytes: Floats
    time_s: Floats

    @classmethod
    def of(cls, replayer: StrategyReplayer, choices: Choices, edge_choices: Choices) -> Pool:
        """Returns strategies, replayed."""
        replayed = replayer.replay(choices, edge_choices)
        return cls(choices, edge_choices, replayed.peak_bytes, replayed.time_s)

    @classmethod
    def of_met(cls, met: Met) -> Pool:
        """Returns the strategies of a game."""
        return cls(met.choices, met.edge_choices, met.peak_bytes, met.time_s)

    def joined(self, other: Pool) -> Pool:
        """Returns the union of both."""
        return Pool(
            np.concatenate([self.choices, other.choices]),
            np.concatenate([self.edge_choices, other.edge_choices]),
            np.concatenate([self.peak_bytes, other.peak_bytes]),
            np.concatenate([self.time_s, other.time_s]),
        )

    def fits(self, limit_bytes: float) -> NDArray[np.bool_]:
        """Returns which strategies fit, shape (S,)."""
        return np.asarray(self.peak_bytes <= limit_bytes)

    def best(self, limit_bytes: float) -> int:
        """Returns the fastest strategy that fits, or else the one of the least peak."""
        fits = self.fits(limit_bytes)
        if fits.any():
            return int(np.where(fits, self.time_s, inf).argmin())
        return int(self.peak_bytes.argmin())

    def nearest(self, limit_bytes: float) -> Choices:
        """Returns the fastest strategy that fits, or else a few of the least peaks."""
        if self.fits(limit_bytes).any():
            return self.choices[[self.best(limit_bytes)]]
        ascending = self.choices[np.argsort(self.peak_bytes, kind="stable")]
        _, first = np.unique(ascending, axis=0, return_index=True)
        return ascending[np.sort(first)[:NEAREST]]

    def rank(self, limit_bytes: float) -> tuple[float, float]:
        """Returns the best strategy's excess over the limit (bytes), then its time."""
        best = self.best(limit_bytes)
        return max(float(self.peak_bytes[best]) - limit_bytes, 0.0), float(self.time_s[best])

    def time_within(self, limit_bytes: float) -> float:
        """Returns the time of the fastest strategy that fits; infinite if none does."""
        return float(np.where(self.fits(limit_bytes), self.time_s, inf).min(initial=inf))

    def unbeaten(self) -> Pool:
        """Returns the strategies that none beats in peak and time, by ascending peak."""
        kept = unbeaten(self.peak_bytes, self.time_s)
        return Pool(
            self.choices[kept], self.edge_choices[kept], self.peak_bytes[kept], self.time_s[kept]
        )

    def solution(
        self,
        problem: SearchProblem,
        limit_bytes: float,
        bound_s: float,
        *,
        status: str,
        seconds: float,
    ) -> Solution:
        """Returns the unbeaten strategies with their sums; `epsilon` is the excess of the fastest
        that fits over a proven bound."""
        kept, best_s = self.unbeaten(), self.time_within(limit_bytes)
        memory, time = problem.summed(kept.choices, kept.edge_choices)
        proven = 0.0 < bound_s < inf and isfinite(best_s)
        return Solution(
            memory,
            time,
            kept.choices,
            kept.edge_choices,
            exact=False,
            epsilon=max(best_s / bound_s - 1.0, 0.0) if proven else inf,
            time_lower_bound_s=None,
            status=status,
            seconds=seconds,
            method="replayed",
        )


class Improver:
    """Makes strategies under the charges of one game, for one limit (bytes).

    `apart`: as a last resort, groups of one class are changed individually.
    """

    def __init__(
        self,
        replayer: StrategyReplayer,
        charges: OwnerCosts,
        limit_bytes: float,
        *,
        apart: bool = False,
    ) -> None:
        self._replayer = replayer
        self.apart = apart
        self._problem = replayer.problem
        self.charges = charges
        self._limit = limit_bytes
        _, self._segment = np.unique(self._problem.context.segments, return_inverse=True)
        self._segments = int(self._segment.max(initial=-1)) + 1
        kinds: dict[int, int] = {}
        self._kind = np.array(
            [kinds.setdefault(id(cost), len(kinds)) for cost in self._problem.costs]
        )

    def replayed(self, choices: Choices) -> Pool:
        """Returns strategies with the cheapest alternatives of their edges, replayed."""
        return Pool.of(self._replayer, choices, self.refilled(choices)[0])

    def refilled(self, choices: Choices) -> tuple[Choices, Floats]:
        """Returns the cheapest alternatives of edges, (S, edges), and the total charges (S,)."""
        given = np.ascontiguousarray(choices, dtype=np.uint32)
        return _core.refilled(given, self.charges.constant, self._of_groups, self._of_edges)

    @cached_property
    def _of_groups(self) -> tuple[list[Floats], NDArray[np.int64]]:
        """The groups' charges, and the index of each group's charges among these."""
        charges, numbers = self.charges.groups, np.zeros(len(self.charges.groups), np.int64)
        tables = alike(charges)
        for number, of in enumerate(tables):
            numbers[of] = number
        return [np.ascontiguousarray(charges[of[0]]) for of in tables], numbers

    @cached_property
    def _of_edges(self) -> tuple[list[Cheapest], NDArray[np.int64]]:
        """The edges' charges; source, target and index of each edge's charges, (edges, 3)."""
        crossings, charges = self._problem.edges, self.charges.edges
        ends = np.array([(e.source, e.target, 0) for e in crossings], np.int64).reshape(-1, 3)
        tables = alike([edge.table for edge in crossings], charges)
        for number, of in enumerate(tables):
            ends[of, 2] = number
        return [_cheapest(crossings[of[0]].table, charges[of[0]]) for of in tables], ends

    def mixes(self, met: Met, mix: Floats) -> Choices:
        """Returns strategies that take each segment from one of those met, by the mixture's
        weights."""
        chosen = shared(met, mix)
        shares = mix[chosen] if len(chosen) > 1 else np.ones(1)
        shares = shares / shares.sum()
        where = (np.arange(self._segments) + 0.5) / max(self._segments, 1)
        made = []
        for order in (np.argsort(-shares), np.argsort(shares)):
            ends = np.cumsum(shares[order])
            contiguous = np.minimum(np.searchsorted(ends, where), len(order) - 1)
            made += [order[contiguous], order[_spread(shares[order], self._segments)]]
        groups = np.arange(met.choices.shape[1])
        rows = [met.choices[chosen[of][self._segment], groups] for of in made]
        return np.unique(np.stack(rows), axis=0)

    def improve(
        self, pool: Pool, donors: Choices, good_s: float, go_on: Callable[[float], None]
    ) -> Iterator[Pool]:
        """Yields the pool after each improvement round.

        A round replaces windows by those of the donors, and one configuration of all groups of a
        class. It improves the fastest strategy that fits, or else the one of the least peak; then
        the next best ones, and if nothing gains two classes at once. Ends when the best takes at
        most `good_s`, or when nothing gains. `go_on(fraction)` may raise to end it.
        """
        seen: set[bytes] = set()
        wider = apart = False
        for number in range(MOST_ROUNDS):
            go_on(number / MOST_ROUNDS)
            before = pool.rank(self._limit)
            if before <= (0.0, good_s):
                break
            nearest = pool.nearest(self._limit)
            if apart:
                candidates = list(self._singles(nearest[0]))
            elif wider:
                candidates = list(self._pairs(nearest[0]))
            else:
                candidates = [one for donor in donors for one in self._windows(nearest[0], donor)]
                candidates += [one for near in nearest for one in self._swaps(near)]
            made = {one.tobytes(): one for one in candidates}
            new = [one for key, one in made.items() if key not in seen]
            seen.update(made)
            if new:
                tried = self._try(np.stack(new), before)
                pool = pool.joined(tried)
                several = self.together(nearest[0], tried, before)
                if len(several):
                    pool = pool.joined(self.replayed(several))
                yield pool
            if _gains(pool.rank(self._limit), before):
                wider = apart = False
            elif self.apart and not apart:
                apart = True
            elif wider or before[0] == 0.0:
                break
            else:
                wider, apart = True, False

    def _swaps(self, best: Choices) -> Iterator[Choices]:
        """Yields the best with one other configuration for all groups of one class."""
        for kind in range(int(self._kind.max(initial=-1)) + 1):
            yield from self._of_kind(best, kind, SWAPS)

    def _of_kind(self, best: Choices, kind: int, most: int) -> Iterator[Choices]:
        """Yields the best with one of the `most` cheapest configurations for one class, or with the
        cheapest of any proportion and kind of gradient sum."""
        yield from self._changed(best, np.flatnonzero(self._kind == kind), most)

    def _singles(self, best: Choices) -> Iterator[Choices]:
        """Yields the best with other configurations for one group, or for two connected ones."""
        for group in range(len(self._kind)):
            yield from self._changed(best, np.array([group]), PAIRED)
        for edge in self._problem.edges[:MOST_PAIRS]:
            for one in self._changed(best, np.array([edge.source]), PAIRED):
                yield from self._changed(one, np.array([edge.target]), PAIRED)

    def _changed(self, best: Choices, groups: NDArray[np.int64], most: int) -> Iterator[Choices]:
        charged = self.charges.groups[groups[0]]
        cheapest = np.argsort(charged, kind="stable")
        costs = self._problem.costs[groups[0]]
        kinds = np.stack([costs.proportion, costs.gradient_sum], axis=1)[cheapest]
        _, first = np.unique(kinds, axis=0, return_index=True)
        others = cheapest[np.sort(first[first >= most])]
        for row in [*cheapest[:most].tolist(), *others.tolist()]:
            if (best[groups] != row).any():
                one = best.copy()
                one[groups] = row
                yield one

    def _pairs(self, best: Choices) -> Iterator[Choices]:
        """Yields the best with other configurations for all groups of two connected classes."""
        kinds = {
            (int(self._kind[edge.source]), int(self._kind[edge.target]))
            for edge in self._problem.edges
        }
        for a, b in sorted(kinds)[:MOST_PAIRS]:
            for one in self._of_kind(best, a, PAIRED):
                yield from self._of_kind(one, b, PAIRED)

    def _try(self, made: Choices, before: tuple[float, float]) -> Pool:
        """Replays candidates in the order of their charges until one gains, and returns them."""
        edges, charged = self.refilled(made)
        order = np.argsort(charged)

        def replayed(first: int) -> Pool:
            some = order[first : first + BATCH]
            return Pool.of(self._replayer, made[some], edges[some])

        tried = now = replayed(0)
        for first in range(BATCH, min(len(order), BATCHES * BATCH), BATCH):
            if _gains(now.rank(self._limit), before):
                break
            now = replayed(first)
            tried = tried.joined(now)
        return tried

    def together(self, best: Choices, tried: Pool, before: tuple[float, float]) -> Choices:
        """Returns the best with several gaining changes combined, (S, groups): the 2, 3, 4, 6, 8,
        12, … largest gains that change different groups."""
        over = np.maximum(tried.peak_bytes - self._limit, 0.0)
        gains = (over < before[0]) | ((over == before[0]) & (tried.time_s < before[1]))
        order = np.lexsort((tried.time_s, over))
        one, taken, made = best.copy(), np.zeros(len(best), dtype=bool), []
        for row in order[: np.count_nonzero(gains)].tolist():
            changes = tried.choices[row] != best
            if not (changes & taken).any():
                one = np.where(changes, tried.choices[row], one)
                taken |= changes
                made.append(one)
        sizes = {size << power for size in (2, 3) for power in range(len(made).bit_length())}
        some = [made[size - 1] for size in sorted(sizes | {len(made)}) if 2 <= size <= len(made)]
        return np.array(some, dtype=best.dtype).reshape(-1, len(best))

    def _windows(self, best: Choices, donor: Choices) -> Iterator[Choices]:
        """Yields the best with some segments, or all groups of one class, taken from another
        strategy."""
        differs = best != donor
        length = 1
        while length <= self._segments:
            for start in range(0, self._segments, max(length // 2, 1)):
                inside = (self._segment >= start) & (self._segment < start + length)
                if (inside & differs).any():
                    yield np.where(inside, donor, best)
            length *= 2
        for kind in np.unique(self._kind[differs]).tolist():
            yield np.where(self._kind == kind, donor, best)


def shared(met: Met, mix: Floats) -> NDArray[np.int64]:
    """Returns which strategies have weight in the mixture (S,); the fastest alone if the game ran
    out of time before its first equilibrium."""
    chosen = np.flatnonzero(mix > SHARE)
    return chosen if len(chosen) else np.array([met.time_s.argmin()])


def _cheapest(table: EdgeTable, costs: Floats) -> Cheapest:
    """Returns the rows and columns of a table's configurations, and each pair's cheapest
    alternative with its cost."""
    exists = np.arange(table.kept.shape[2]) < table.count[..., None]
    every = np.where(exists, np.broadcast_to(costs, exists.shape), inf)
    return table.rows, table.columns, every.argmin(axis=2).astype(np.uint32), every.min(axis=2)


def _gains(now: tuple[float, float], before: tuple[float, float]) -> bool:
    return now[0] < before[0] * (1.0 - GAIN) or (
        now[0] <= before[0] and now[1] < before[1] * (1.0 - GAIN)
    )


def _spread(shares: Floats, count: int) -> NDArray[np.int64]:
    """Returns `count` indices, evenly spread by these weights."""
    given = np.zeros(len(shares))
    places = np.zeros(count, dtype=np.int64)
    for place in range(count):
        places[place] = int((shares * (place + 1) - given).argmax())
        given[places[place]] += 1
    return places
