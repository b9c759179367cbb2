"""A lower bound for several kinds of devices: branch and bound.

The mean strategy of a game may be half on one kind and half on another, which no strategy is. So
strategies are divided by a group's class: its places, its proportion, its kind of gradient sum. The
least bound of all parts holds for all strategies. A part restricts the configurations of some
groups. Its game starts with the best query of its parent, and uses that critical paths surely are
at a restricted group's place at some moment (`replay/mixed/stays.py`). The part with the least
bound is divided next.
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
"""Effort limits of the game of one part."""
TOLERANCE = 5e-3
MOST_STAYS = 4
"""Tasks at either end of a group at which the place of critical paths is tested."""
MIXED = 0.02
"""A group whose other classes have less weight than this in the mean strategy counts as decided."""
AT_ENDS = 1.5
"""Preference for the first and last groups over others."""


@dataclass(frozen=True)
class MixedBounding:
    """The bounds of a replayer of several kinds."""

    bound: MixedBound
    linear: MixedLinear
    moments: MixedMoments
    wanderers: Sequence[Wanderer]

    @classmethod
    def of(cls, replayer: MixedReplayer) -> MixedBounding:
        """Returns the bounds for all strategies."""
        some = wanderers(replayer)
        return cls(
            MixedBound(replayer, some), MixedLinear(replayer, some), MixedMoments(replayer), some
        )


@dataclass
class _Part:
    """The strategies with these configurations: their proof, best query, and the strategies that
    the part's game met (or, before it is played, its parent's) with their weights in the mean
    one."""

    masks: list[NDArray[np.bool_]]
    met: Met
    mix: Floats
    lines: tuple[Line, ...] = ()
    query: Query | None = None

    def bound_s(self, limit_bytes: float) -> float:
        return max((line.at(limit_bytes) for line in self.lines), default=0.0)


class _PartGame(Game):
    """A game that does not replay strategies: bounds need only durations."""

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
    """The parts of one search's strategies, and their proofs."""

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
        """New strategies met by games of parts, with durations only."""
        self.closed: list[_Part] = []
        """The parts after the division."""

    def divide(
        self,
        game: Game,
        met: Met,
        mix: Floats,
        limit_bytes: float,
        left_s: Callable[[], float],
        cutoff_s: float,
    ) -> Proof:
        """Divides strategies until no part's bound is below `cutoff_s`, time runs out, or no part
        can be divided; returns the proof for all strategies.

        `game` has been played with all strategies; `met` and `mix` are those of its mean strategy.
        If cancelled, returns the proof until then.
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
                children = []  # it keeps its bound
            if not children:
                closed.append(part)
                break
            for child in children:
                heappush(queue, (child.bound_s(limit_bytes), next(order), child))
        closed += [part for _, _, part in queue]
        self.closed = closed
        return Proof(parts=tuple(Proof(lines=part.lines) for part in closed))

    def _everything(self, cost: GroupCosts) -> NDArray[np.bool_]:
        """Returns the mask of all configurations, shared by groups that have the same."""
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
        """Returns a part after its game."""
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
        """Yields the place where critical paths surely are when a task of a restricted group
        ends."""
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
        """Yields the parts of a part, by the class of one group; none if no group qualifies."""
        if chosen is None:
            return
        group, kinds = chosen
        mask = part.masks[group]
        for kind in np.unique(kinds[mask]).tolist():
            masks = list(part.masks)
            masks[group] = mask & (kinds == kind)
            yield _Part(masks, part.met, part.mix)

    def _group_to_divide(self, part: _Part) -> tuple[int, NDArray[np.int64]] | None:
        """Returns the group with the most different classes in the mean strategy, and the class of
        each configuration; coarser classes go first."""
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
    """Returns which strategies use only allowed configurations."""
    allowed = np.ones(len(met.time_s), dtype=bool)
    for group, mask in enumerate(masks):
        allowed &= mask[met.choices[:, group]]
    return np.flatnonzero(allowed)
