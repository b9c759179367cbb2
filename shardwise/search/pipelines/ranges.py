"""What the passes of a micro-batch take at least in ranges of units, communication with them.

The best mean of longest paths through the whole model's step (`search/game.py`) is, as far as it
goes through the groups of a stage, a path through that stage: with weights w of the tasks of one
micro-batch, and a, b slopes of the soft maximum at the host's time,

    t_s >= sum over tasks of w_t p_t + b H_s / A

for the stage of every cut and strategy. The least of such a sum over the strategies of a range is
one elimination. Ranges of 1, 2, 4, ... units are eliminated, those of equal costs once; longer ones
take no less than the sum of their parts. With a price on memory the same bounds the stages that
fit, of which each pays for what is surely held (`replay/moments.py`) and kept, less the limit.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf

import numpy as np

from shardwise.cost.options import Progress
from shardwise.replay.owner_costs import OwnerCosts, priced
from shardwise.search.elimination import least_of
from shardwise.search.game import Bounding, Game, Met
from shardwise.search.pipelines.units import Units
from shardwise.search.search import Search
from shardwise.sharding.layout import Floats

LONGEST = 16
"""The most units of a range that is eliminated."""

MOST = 160
"""The most ranges that are eliminated; beyond, shorter ones are added up."""

QUERIES = 10
"""The most queries for the mean of paths."""

PRICES = np.geomspace(0.02, 5.0, 9)
"""Prices of all memory of a device that are tried, in times of the passes without one."""


@dataclass
class RangeBounds:
    """What the passes of one micro-batch take at least in ranges of units: (U + 1, U + 1) seconds,
    in row i and column j of the units from i to j - 1, infinite where j <= i.

    `search` has the whole model on the devices of a stage, in four micro-batches or more.
    """

    search: Search
    units: Units
    progress: Progress
    _known: dict[tuple[int, int, float], Floats] = field(default_factory=dict, init=False)
    _lines: dict[int, list[tuple[float, Floats]]] = field(default_factory=dict, init=False)
    """By the number of kept micro-batches: prices of memory, and what ranges are charged at
    them."""
    _charged: dict[float, OwnerCosts] = field(default_factory=dict, init=False)

    @cached_property
    def passes_s(self) -> Floats:
        """Those of any strategy.

        Raises `Cancelled`, and `SolverError` where memory does not do.
        """
        game = self._game
        _, first = game.cheapest(game.sums())
        game.play(first, inf, most_queries=QUERIES)
        return self._ranges(self._charges(inf))

    def within(self, kept: Sequence[int], limit_bytes: float) -> list[Floats]:
        """Returns for each stage those of strategies whose peak is within a limit; stage s keeps
        `kept[s]` micro-batches.

        A price of memory is paid for what is surely held in the last backward, and for what every
        further micro-batch keeps; fewer of them than are kept are a bound too. Raises as
        `passes_s`.
        """
        stages = len(kept)
        some = _numbers(kept)
        bounds = {number: self._within(number, stages, limit_bytes) for number in some}
        return [bounds[max(number for number in some if number <= count)] for count in kept]

    def known_within(self, kept: Sequence[int], limit_bytes: float) -> list[Floats]:
        """Returns the same by the prices that other limits have found, without another."""
        bounds = {number: self._known_within(number, limit_bytes) for number in _numbers(kept)}
        return [bounds[max(number for number in bounds if number <= count)] for count in kept]

    def _known_within(self, number: int, limit_bytes: float) -> Floats:
        best = self.passes_s
        for of_number, lines in self._lines.items():
            # What keeps more micro-batches holds no less.
            for price, charged in lines if of_number <= number else ():
                best = np.maximum(best, charged - price * limit_bytes)
        return best

    def _within(self, number: int, stages: int, limit_bytes: float) -> Floats:
        """Returns the bound of a stage of `stages` that keeps `number` micro-batches."""
        key = number, stages, limit_bytes
        if key not in self._known:
            free = self.passes_s
            time, held = self._charges_within(stages * limit_bytes), self._game.least_held()
            memory = priced([(1.0, held), (number - 1.0, self._kept)])
            price = self._price(time, memory, limit_bytes - memory.constant, stages)
            self._known[key] = free
            if price > 0.0:
                charged = self._ranges(priced([(1.0, time), (price, memory)]))
                self._lines.setdefault(number, []).append((price, charged))
                self._known[key] = np.maximum(free, charged - price * limit_bytes)
        return self._known[key]

    def _charges_within(self, whole_bytes: float) -> OwnerCosts:
        """Returns the charges of the whole model within a limit; the game is played once for it."""
        if whole_bytes not in self._charged:
            self._game.play(self._first, whole_bytes, most_queries=QUERIES)
            self._charged[whole_bytes] = self._charges(whole_bytes)
        return self._charged[whole_bytes]

    @cached_property
    def _kept(self) -> OwnerCosts:
        """What a kept micro-batch takes."""
        problem = self.search.problem
        return OwnerCosts(
            0.0,
            [cost.activation_bytes for cost in problem.costs],
            [edge.table.memory_bytes for edge in problem.edges],
        )

    def _price(self, time: OwnerCosts, memory: OwnerCosts, left_bytes: float, stages: int) -> float:
        """Returns the price of memory, seconds a byte, that bounds a stage in the middle best."""
        units = len(self.units)
        width = max(units // stages, 1)
        groups = self.units.groups_of((units - width) // 2, (units - width) // 2 + width)

        def bound_s(price: float) -> float:
            return self._least(priced([(1.0, time), (price, memory)]), groups) - price * left_bytes

        best, best_s = 0.0, self._least(time, groups)
        scale = best_s / left_bytes
        for price in (scale * PRICES).tolist():
            if (seconds := bound_s(price)) > best_s:
                best, best_s = price, seconds
        return best

    @cached_property
    def _bounding(self) -> Bounding:
        return Bounding.of(self.search.own_replayer)

    @cached_property
    def _game(self) -> Game:
        search = self.search
        return Game(search.replayer, self._bounding, search.options, self.progress)

    @cached_property
    def _first(self) -> Met:
        return self._game.cheapest(self._game.least_held())[1]

    def _charges(self, limit_bytes: float) -> OwnerCosts:
        """Returns what the best mean of paths within a limit charges the owners for one
        micro-batch."""
        query = self._game.best_query(limit_bytes)
        assert query is not None
        tasks = self._bounding.linear.weighted(np.append(query.again[:-2], 0.0))
        host = self.search.own_replayer.host
        host_share = float(query.once[-1]) / self.search.problem.context.micro_batches
        if host is None or host_share == 0.0:
            return tasks
        return priced([(1.0, tasks), (host_share, host)])

    def _ranges(self, charges: OwnerCosts) -> Floats:
        """Returns the least of what ranges are charged."""
        parts = self._parts(charges)
        count = len(self.units)
        ranges = np.full((count + 1, count + 1), inf)
        longest = max(parts)
        for length in range(1, count + 1):
            first = np.arange(count + 1 - length)
            part = min(1 << (length.bit_length() - 1), longest)
            seconds = parts[part][: len(first)]
            if part < length:
                seconds = seconds + ranges[first + part, first + length]
            ranges[first, first + length] = seconds
        return ranges + charges.constant

    def _least(self, charges: OwnerCosts, groups: list[int]) -> float:
        options = self.search.options
        return least_of(
            self.search.problem,
            charges,
            groups,
            memory_limit_bytes=options.search_memory_bytes,
            threads=options.threads,
        )

    def _parts(self, charges: OwnerCosts) -> dict[int, Floats]:
        """Returns for each length, a power of two, what the ranges of that length cost at least, by
        their first unit."""
        problem, units = self.search.problem, self.units
        into: dict[int, list[int]] = {}
        for number, edge in enumerate(problem.edges):
            into.setdefault(edge.target, []).append(number)

        def kind(groups: list[int]) -> Hashable:
            place = {group: number for number, group in enumerate(groups)}
            edges = [e for g in groups for e in into.get(g, ()) if problem.edges[e].source in place]
            return (
                tuple((id(problem.costs[g]), id(charges.groups[g])) for g in groups),
                tuple(
                    (
                        place[problem.edges[e].source],
                        place[problem.edges[e].target],
                        id(problem.edges[e].table),
                        id(charges.edges[e]),
                    )
                    for e in edges
                ),
            )

        parts: dict[int, Floats] = {}
        known: dict[Hashable, float] = {}
        length = 1
        while length <= min(len(units), LONGEST):
            ranges = [units.groups_of(i, i + length) for i in range(len(units) + 1 - length)]
            kinds = [kind(groups) for groups in ranges]
            new = {k: groups for k, groups in zip(kinds, ranges, strict=True) if k not in known}
            if parts and len(known) + len(new) > MOST:
                break
            for of_kind, groups in new.items():
                known[of_kind] = self._least(charges, groups)
            parts[length] = np.array([known[k] for k in kinds])
            length *= 2
        return parts


def _numbers(kept: Sequence[int]) -> set[int]:
    """Returns those numbers of kept micro-batches that stages are bounded for, the least among
    them."""
    descending, stages = sorted(kept, reverse=True), len(kept)
    return {descending[at] for at in (0, stages // 3, 2 * stages // 3, stages - 1)}
