"""A bound on the step of several kinds by parts of the strategies: branch and bound.

The mean strategy of a game may be half on one kind and half on another, and no strategy is. The
strategies are divided by what a group has: which places, which proportion, which kind of gradient
sum. Every strategy is in one part, so the least bound of all parts holds for all. In a part the
configurations of some groups are fewer; its game is the same one with these alone, its first query
is the best of the part that it comes from, and wanderers surely are where such a group is
(`replay/mixed/stays.py`). The part with the least bound is divided next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count

import numpy as np
from numpy.typing import NDArray

from shardwise.cost.group_costs import GroupCosts
from shardwise.cost.options import Options, Progress
from shardwise.cost.part import Masks
from shardwise.errors import Cancelled, SolverError
from shardwise.replay.bound import with_host
from shardwise.replay.mixed.bounds import MixedBound, MixedLinear, MixedMoments
from shardwise.replay.mixed.cells import PlaceDurations
from shardwise.replay.mixed.replay import MixedReplayer
from shardwise.replay.mixed.stays import Stay
from shardwise.replay.mixed.wandering import Wanderer, wanderers
from shardwise.replay.owner_costs import Choices as AnyChoices
from shardwise.search.game import Bounding, Game, Met, Query
from shardwise.search.search import Line, Proof
from shardwise.sharding.layout import Floats

QUERIES = 5
"""Of the game of one part."""
TOLERANCE = 5e-3
MOST_STAYS = 4
"""Tasks of a group at which wanderers' stays are looked at, from either end."""
MIXED = 0.02
"""A group of which the mean strategy has so little in other classes counts as decided."""
AT_ENDS = 1.5
"""By how much the first and the last groups are preferred to others."""


@dataclass(frozen=True)
class MixedBounding:
    """What bounds the steps of a replayer of several kinds."""

    bound: MixedBound
    linear: MixedLinear
    moments: MixedMoments
    wanderers: Sequence[Wanderer]

    @classmethod
    def of(cls, replayer: MixedReplayer) -> MixedBounding:
        """Returns what bounds the steps of all strategies."""
        some = wanderers(replayer)
        return cls(
            MixedBound(replayer, some), MixedLinear(replayer, some), MixedMoments(replayer), some
        )


@dataclass
class _Part:
    """Some strategies: those of these configurations. What is proven of them, their best query, the
    strategies that its game met (until it is played, its parent's) and their shares in the mean
    one."""

    masks: list[NDArray[np.bool_]]
    met: Met
    mix: Floats
    lines: tuple[Line, ...] = ()
    query: Query | None = None

    def bound_s(self, limit_bytes: float) -> float:
        return max((line.at(limit_bytes) for line in self.lines), default=0.0)


class _PartGame(Game):
    """A game that does not replay what it meets: bounds need durations alone."""

    places: PlaceDurations

    def met(self, choices: AnyChoices, edge_choices: AnyChoices) -> Met:
        durations_s = self._bound.durations(
            self.places.of(choices, edge_choices), choices, edge_choices
        )
        host_s = self.replayer.host_times(choices, edge_choices)
        nothing = np.zeros(len(choices))
        return Met(
            choices,
            edge_choices,
            with_host(durations_s, host_s),
            nothing,
            nothing,
            np.full(len(choices), -1, dtype=np.int64),
        )


class Branches:
    """The parts of the strategies of one search, and what is proven of each."""

    def __init__(
        self,
        replayer: MixedReplayer,
        bounding: MixedBounding,
        options: Options,
        progress: Progress,
    ) -> None:
        self._replayer = replayer
        self._problem = replayer.problem
        self._bounding = bounding
        self._options = options
        self._progress = progress
        self._classes: dict[int, list[NDArray[np.int64]]] = {}
        self._durations = PlaceDurations(replayer)
        self._moments: Sequence[int] = ()
        self._masks: dict[int, NDArray[np.bool_]] = {}
        self.cancelled = False
        self.met: list[Met] = []
        """New strategies that games of parts met, with durations alone."""
        self.closed: list[_Part] = []
        """The parts after the strategies have been divided."""

    def divide(
        self,
        game: Game,
        met: Met,
        mix: Floats,
        limit_bytes: float,
        left_s: Callable[[], float],
        cutoff_s: float,
    ) -> Proof:
        """Returns what is proven of all strategies by dividing them, until no bound of a part is
        below `cutoff_s`, or no seconds are left, or no part can be divided.

        `game` has been played with all strategies; `met` and `mix` are those of its mean one.
        Where it is cancelled, what is proven until then holds.
        """
        whole = _Part([self._everything(cost) for cost in self._problem.costs], met, mix)
        self._moments = [*game.moments, *self._bounding.moments.all_last_backward]
        whole.lines = tuple(query.line for query in game.queries)
        whole.query = game.best_query(limit_bytes)
        order = count()
        queue = [(whole.bound_s(limit_bytes), next(order), whole)]
        closed: list[_Part] = []
        while queue and queue[0][0] < cutoff_s and left_s() > 0.0:
            part = heappop(queue)[2]
            chosen = self._group_to_divide(part)
            try:
                children = [
                    self._played(child, part, limit_bytes, cutoff_s, left_s)
                    for child in self._children(part, chosen)
                ]
            except (Cancelled, SolverError) as error:
                self.cancelled = isinstance(error, Cancelled)
                children = []  # it stays as it was
            if not children:
                closed.append(part)
                break
            for child in children:
                heappush(queue, (child.bound_s(limit_bytes), next(order), child))
        closed += [part for _, _, part in queue]
        self.closed = closed
        return Proof(parts=tuple(Proof(lines=part.lines) for part in closed))

    def _everything(self, cost: GroupCosts) -> NDArray[np.bool_]:
        """Returns the mask of all configurations, one for all groups that have the same."""
        if id(cost) not in self._masks:
            self._masks[id(cost)] = np.ones(len(cost.time_s), dtype=bool)
        return self._masks[id(cost)]

    def _played(
        self,
        part: _Part,
        parent: _Part,
        limit_bytes: float,
        cutoff_s: float,
        left_s: Callable[[], float],
    ) -> _Part:
        """Returns a part with what its game proves."""
        bound = self._bounding.bound.within(list(self.stays(part.masks)))
        bounding = Bounding(bound, self._bounding.linear, self._bounding.moments)
        game = _PartGame(
            self._replayer, bounding, self._options, self._progress, allowed=part.masks
        )
        game.places = self._durations
        game.price(self._moments)
        part.lines = parent.lines
        game.try_first(parent.query, max(left_s(), 0.05))
        if self._bound_of(game, part, limit_bytes) < cutoff_s:
            inside = parent.met.take(_inside(parent.met, part.masks))
            outcome = game.play(
                inside,
                limit_bytes,
                cutoff_s=cutoff_s,
                time_limit_s=max(left_s(), 0.05),
                tolerance=TOLERANCE,
                most_queries=QUERIES,
            )
            part.met, part.mix = outcome.met, outcome.mix
            self.met.append(outcome.met.take(np.arange(-outcome.new, 0)))
        part.query = game.best_query(limit_bytes) or parent.query
        part.lines = (*parent.lines, *(query.line for query in game.queries))
        return part

    @staticmethod
    def _bound_of(game: Game, part: _Part, limit_bytes: float) -> float:
        return max(part.bound_s(limit_bytes), game.bound_s(limit_bytes))

    def stays(self, masks: Masks) -> Iterator[Stay]:
        """Yields where wanderers surely are when a task of a group ends of which not all
        configurations are left."""
        for number, wanderer in enumerate(self._bounding.wanderers):
            for group, cost in enumerate(self._problem.costs):
                mask = masks[group]
                if mask is self._everything(cost):
                    continue
                sets = wanderer.sets[group][mask]
                common = int(np.bitwise_and.reduce(sets))
                if not common:
                    continue
                place = (common & -common).bit_length() - 1
                alone = bool((sets == common).all()) and common == 1 << place
                tasks = wanderer.itinerary.operators.get(group, [])
                for task in dict.fromkeys([*tasks[:MOST_STAYS], *tasks[-MOST_STAYS:]]):
                    yield Stay(number, task, place, alone)

    @staticmethod
    def _children(part: _Part, chosen: tuple[int, NDArray[np.int64]] | None) -> Iterator[_Part]:
        """Yields the parts of a part, by the class of one group; none where none is chosen."""
        if chosen is None:
            return
        group, kinds = chosen
        mask = part.masks[group]
        for kind in np.unique(kinds[mask]).tolist():
            masks = list(part.masks)
            masks[group] = mask & (kinds == kind)
            yield _Part(masks, part.met, part.mix)

    def _group_to_divide(self, part: _Part) -> tuple[int, NDArray[np.int64]] | None:
        """Returns the group of which the mean strategy has the most different classes, and the
        class of each configuration; of all groups the coarsest classes come first."""
        mix = part.mix / max(part.mix.sum(), 1e-300)
        ends = {0, len(self._problem.costs) - 1}
        for level in range(3):
            best, found = MIXED, None
            for group, cost in enumerate(self._problem.costs):
                kinds = self._classes_of(cost)[level]
                if len(np.unique(kinds[part.masks[group]])) < 2:
                    continue
                shares = np.bincount(kinds[part.met.choices[:, group]], weights=mix)
                score = (1.0 - float((shares**2).sum())) * (AT_ENDS if group in ends else 1.0)
                if score > best:
                    best, found = score, (group, kinds)
            if found is not None:
                return found
        return None

    def _classes_of(self, cost: GroupCosts) -> list[NDArray[np.int64]]:
        """Returns the classes of a group's configurations: by places, by proportion, by kind of
        gradient sum."""
        if id(cost) not in self._classes:
            cluster = self._problem.cluster
            present = np.isfinite([cluster.parts(p) for p in range(len(cluster.places))])
            places = (present * (1 << np.arange(len(present)))[:, None]).sum(axis=0)
            proportion = cost.proportion.astype(np.int64)
            self._classes[id(cost)] = [
                np.asarray(places[proportion], dtype=np.int64),
                proportion,
                proportion * 1000 + cost.gradient_sum.astype(np.int64),
            ]
        return self._classes[id(cost)]


def _inside(met: Met, masks: Masks) -> NDArray[np.int64]:
    """Returns which strategies have allowed configurations alone."""
    allowed = np.ones(len(met.time_s), dtype=bool)
    for group, mask in enumerate(masks):
        allowed &= mask[met.choices[:, group]]
    return np.flatnonzero(allowed)
