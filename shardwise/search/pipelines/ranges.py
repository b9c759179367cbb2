"""What the passes of a micro-batch take at least in ranges of units, communication with them.

The best mean of longest paths through the whole model (`passes.py`) is, as far as it goes through
the groups of a stage, a path through that stage: with weights w of the tasks of one micro-batch,
and a, b slopes of the soft maximum at the host's time,

    t_s >= sum over tasks of w_t p_t + b H_s / A

for the stage of every cut and strategy. The least of such a sum over the strategies of a range is
one elimination. Ranges of 1, 2, 4, ... units are eliminated, those of equal costs once; longer ones
take no less than the sum of their parts. With a price on memory the same bounds the stages that
fit, of which each pays for what is surely held (`replay/moments.py`) and kept, less the limit: any
price and any mean of paths bound every range within every limit.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf

import numpy as np

from shardwise.cost.options import Progress
from shardwise.replay.owner_costs import OwnerCosts
from shardwise.search.pipelines.passes import PassesGame
from shardwise.search.pipelines.units import Units
from shardwise.search.search import Search
from shardwise.sharding.layout import Floats

LONGEST = 16
"""The most units of a range that is eliminated."""

MOST = 160
"""The most ranges that are eliminated; beyond, shorter ones are added up."""


@dataclass(frozen=True)
class _Line:
    """What stages that keep `kept` micro-batches are charged, (U + 1, U + 1), at a price of
    memory."""

    kept: int
    price: float
    charged_s: Floats


@dataclass
class RangeBounds:
    """What the passes of one micro-batch take at least in ranges of units: (U + 1, U + 1) seconds,
    in row i and column j of the units from i to j - 1, infinite where j <= i.

    `search` has the whole model on the devices of a stage, in four micro-batches or more.
    """

    search: Search
    units: Units
    progress: Progress
    _lines: list[_Line] = field(default_factory=list, init=False)
    _asked: set[tuple[int, int, int, float]] = field(default_factory=set, init=False)

    @cached_property
    def passes_s(self) -> Floats:
        """Those of any strategy.

        Raises `Cancelled`, and `SolverError` where memory does not do.
        """
        return self._ranges(self._game.free().time)

    def within(self, kept: Sequence[int], limit_bytes: float) -> list[Floats]:
        """Returns for each stage those of strategies whose peak is within a limit, by the prices
        that have been asked for; stage s keeps `kept[s]` micro-batches.

        A price of memory is paid for what is surely held in the last backward, and for what every
        further micro-batch keeps. What keeps more micro-batches holds no less. Raises as
        `passes_s`.
        """
        bounds: dict[int, Floats] = {}
        for number in set(kept):
            bounds[number] = self.passes_s
            for line in self._lines:
                if line.kept <= number:
                    within = line.charged_s - line.price * limit_bytes
                    bounds[number] = np.maximum(bounds[number], within)
        return [bounds[number] for number in kept]

    def ask(self, first: int, last: int, kept: int, limit_bytes: float) -> bool:
        """Finds the price, and the mean of paths, that bounds the stage of units `first` to `last`
        - 1 best; returns whether it had not been asked for. Raises as `passes_s`."""
        place = first, last, kept, limit_bytes
        if place in self._asked:
            return False
        self._asked.add(place)
        best = self._game.best(*place)
        if best.price > 0.0:
            charged_s = self._ranges(self._game.charges(kept, best))
            self._lines.append(_Line(kept, best.price, charged_s))
        return True

    @cached_property
    def _game(self) -> PassesGame:
        return PassesGame(self.search, self.units, self.progress)

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
                known[of_kind] = self._game.least_s(charges, groups)
            parts[length] = np.array([known[k] for k in kinds])
            length *= 2
        return parts
