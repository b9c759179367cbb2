"""Lower bounds on a micro-batch's passes in unit ranges, including communication.

The part of the best mean of longest paths through the whole model (`passes.py`) that lies in a
stage's groups is a path through that stage. With weights w of one micro-batch's tasks, and slopes
a, b of the soft maximum at the host's time,

    t_s >= sum over tasks of w_t p_t + b H_s / A

for the stage of every cut and strategy. Its least value over a range's strategies is one
elimination. Ranges of 1, 2, 4, ... units are eliminated, equal ones once; longer ones take at least
the sum of their parts. A price on memory bounds the stages that fit: each pays for its surely held
(`replay/moments.py`) and kept bytes, less the limit. Any price and any mean of paths bound every
range within every limit.
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
"""Maximum number of units of an eliminated range."""

MOST = 160
"""Maximum number of eliminated ranges; above it, shorter ones are added up."""


@dataclass(frozen=True)
class _Line:
    """Charges of stages that keep `kept` micro-batches, (U + 1, U + 1), at a price of memory."""

    kept: int
    price: float
    charged_s: Floats


@dataclass
class RangeBounds:
    """Lower bounds in seconds on one micro-batch's passes in unit ranges, (U + 1, U + 1): row i,
    column j for units i to j - 1, infinite for j <= i.

    `search` has the whole model on the devices of a stage, in four micro-batches or more.
    """

    search: Search
    units: Units
    progress: Progress
    _lines: list[_Line] = field(default_factory=list, init=False)
    _asked: set[tuple[int, int, int, float]] = field(default_factory=set, init=False)

    @cached_property
    def passes_s(self) -> Floats:
        """The bounds for any strategy.

        Raises `Cancelled`, and `SolverError` if memory runs out.
        """
        return self._ranges(self._game.free().time)

    def within(self, kept: Sequence[int], limit_bytes: float) -> list[Floats]:
        """Returns for each stage the bounds for strategies with peaks within a limit, by the prices
        found so far; stage s keeps `kept[s]` micro-batches.

        A price is paid for the bytes surely held in the last backward, and for what each further
        kept micro-batch adds. Keeping more micro-batches takes no less memory. Raises as
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
        """Finds the price and mean of paths with the best bound on units `first` to `last` - 1;
        returns whether it is new. Raises as `passes_s`."""
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
        """Returns the least charges of ranges."""
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
        """Returns for each length, a power of two, the least charges of ranges of that length by
        first unit."""
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
