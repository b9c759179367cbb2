"""The strategies of the whole model that a question allows, replayed, as searches to make documents
of.

Every strategy is replayed with every number of micro-batches; where its fastest copies do not fit
it is the one with the smallest. A search has the strategies of one number as its points, so that
documents compare a strategy with others of the same space.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardwise.cost.options import Progress, go_on
from shardwise.documents.parallelism import Parallelism
from shardwise.errors import InternalError
from shardwise.peers.methods import STAGE
from shardwise.peers.practices import Allowed, Practices
from shardwise.peers.practitioners import Practised, practitioners, replayed
from shardwise.replay.replay import Replayer
from shardwise.search.chosen import Chosen
from shardwise.search.gaps import unbeaten
from shardwise.search.search import Search
from shardwise.search.solution import Solution
from shardwise.trainers.partial import Layers, Tried, fewest, parts_of, with_parts
from shardwise.trainers.spaces import EVERY_RECOMPUTATION


@dataclass(frozen=True)
class Replayable:
    """A search of one number of micro-batches with the replayer of its whole problem."""

    search: Search
    replayer: Replayer


class Parts:
    """The strategies of one problem, those in which some blocks run again among them."""

    def __init__(self, replayable: Replayable, progress: Progress) -> None:
        self._replayer = replayable.replayer
        self._limit_bytes = replayable.search.limit_bytes
        self._progress = progress
        self._practices = Practices(replayable.replayer.problem, progress)

    def tried(self, one: Practised) -> Tried:
        """Returns how far a strategy is above the limit, and its time."""
        over_bytes = one.step.peak_bytes - self._limit_bytes
        return Tried(one.practice.parallelism, one.step.time_s, over_bytes)

    def replayed(self, allowed: Allowed, partial: Collection[Parallelism] = ()) -> list[Practised]:
        """Returns the allowed strategies and those in `partial`, replayed."""
        practices = practitioners(
            self._replayer.problem,
            self._progress,
            allowed=allowed,
            partial=partial,
            practices=self._practices,
        )
        return replayed(self._replayer, practices, self._limit_bytes)

    def of(self, partial: Parallelism) -> Practised | None:
        """Returns a strategy replayed, with its smallest copies where the fastest do not fit; None
        where the problem does not have it."""
        go_on(self._progress, STAGE, 0.0)
        known = self.replayed(lambda one: False, (partial,))
        return min(known, key=lambda one: one.rank(self._limit_bytes), default=None)

    def fewest(self, none: Practised, full: Practised, layers: Layers) -> Practised | None:
        """Returns the strategy that recomputes the fewest blocks and fits; None where only all of
        them do."""
        parts = parts_of(full.practice.parallelism, layers, self._practices.blocks)
        return fewest(parts, self.tried(none), self.tried(full), self.of, self.tried)


def strategies(
    replayables: Sequence[Replayable],
    allowed: Allowed,
    progress: Progress,
    *,
    layers: Layers = "all",
    partial: Collection[Parallelism] = (),
) -> dict[Parallelism, Practised]:
    """Returns the allowed strategies with every number of micro-batches, those in `partial`, and
    what recomputes some blocks and is faster than all others, in the form of `layers`.

    Raises as `practitioners` does.
    """
    best: dict[Parallelism, Practised] = {}
    parts = {id(one.replayer.problem): Parts(one, progress) for one in replayables}
    for one in replayables:
        limit = one.search.limit_bytes
        for practised in parts[id(one.replayer.problem)].replayed(allowed, partial):
            key = practised.practice.parallelism
            if key not in best or practised.rank(limit) < best[key].rank(limit):
                best[key] = practised
    for practised in with_parts(
        list(best.values()),
        lambda one: parts[id(one.problem)].tried(one),
        lambda none, full: parts[id(full.problem)].fewest(none, full, layers),
    ):
        best[practised.practice.parallelism] = practised
    return best


def best_of(practised: Iterable[Practised], limit_bytes: float) -> Practised:
    """Returns the fastest that fits; where none does, the one of the least peak.

    Of equals it is that of the least ZeRO stage, tensor parallelism and recomputation.
    """

    def rank(one: Practised) -> tuple[object, ...]:
        p = one.practice.parallelism
        order = EVERY_RECOMPUTATION.index(p.recompute)
        return (*one.rank(limit_bytes), order, p.tensor, p.sequence, p.zero, p.replicas)

    return min(practised, key=rank)


def simplest_of(practised: Iterable[Practised], limit_bytes: float, within_s: float) -> Practised:
    """Returns the strategy of the fewest choices that fits and takes at most `within_s`, the
    fastest of equals: no recomputation first, then no context, expert and tensor parallelism, one
    copy of shards and the least ZeRO stage. There is one.

    Sequence parallelism goes with tensor parallelism and is no choice of its own.
    """

    def rank(one: Practised) -> tuple[object, ...]:
        p = one.practice.parallelism
        recomputation = p.in_part, EVERY_RECOMPUTATION.index(p.recompute)
        copies = p.replicas if p.zero else 1
        return (recomputation, p.context, p.expert, p.tensor, copies, p.zero, one.step.time_s)

    return min(
        (
            one
            for one in practised
            if one.step.peak_bytes <= limit_bytes and one.step.time_s <= within_s
        ),
        key=rank,
    )


def searches_of(
    replayables: Sequence[Replayable],
    known: Iterable[Practised],
    wanted: Sequence[Practised],
    seconds: float,
) -> tuple[list[Search], list[Chosen]]:
    """Returns a search for each number of micro-batches with its strategies as points, and the
    wanted ones of them.

    Points are those that none of the same search beats in peak and time, and the wanted ones. The
    first search took `seconds` more, which replaying the strategies did.
    """
    searches: list[Search] = []
    chosen: dict[int, Chosen] = {}
    known = list(known)
    for one in replayables:
        own = [other for other in known if other.problem is one.replayer.problem]
        asked = [other for other in wanted if other.problem is one.replayer.problem]
        points = _unbeaten([other for other in own if all(other is not some for some in asked)])
        search = _with_points(one, [*points, *asked], 0.0 if searches else seconds)
        searches.append(search)
        for place, other in enumerate(asked, len(points)):
            chosen[id(other)] = Chosen(search, place)
    if any(id(one) not in chosen for one in wanted):
        raise InternalError("a strategy that was asked for is of none of the searches")
    return searches, [chosen[id(one)] for one in wanted]


def _unbeaten(practised: Sequence[Practised]) -> list[Practised]:
    peak_bytes = np.array([one.step.peak_bytes for one in practised])
    time_s = np.array([one.step.time_s for one in practised])
    return [practised[at] for at in unbeaten(peak_bytes, time_s)]


def _with_points(one: Replayable, points: Sequence[Practised], more_s: float) -> Search:
    """Returns a search with these strategies, its own proof and ending, and that much longer."""
    search, replayer = one.search, one.replayer
    solution = Solution.empty(replayer.problem)
    if points:
        choices = np.stack([point.practice.choices for point in points])
        edge_choices = np.stack([point.practice.edge_choices for point in points])
        memory_bytes, time_s = replayer.problem.summed(choices, edge_choices)
        solution = replace(
            solution,
            memory_bytes=memory_bytes,
            time_s=time_s,
            choices=choices,
            edge_choices=edge_choices,
        )
    ended = search.solution
    return replace(
        search,
        problem=replayer.problem,
        replayer_of=lambda: replayer,
        solution=replace(solution, status=ended.status, seconds=float(ended.seconds) + more_s),
        charges=None,
    )
