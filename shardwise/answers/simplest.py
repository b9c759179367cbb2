"""The simplest strategy within the tolerance.

Predictions are off by a few percent, so the answer is a strategy of the whole model if it takes at
most epsilon longer than the fastest found. If the fastest is proven within epsilon, so is the
answer: it takes at most 1 + epsilon times the proven bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardwise.answers.label import Labels
from shardwise.answers.named import named_strategies
from shardwise.answers.neighbours import left_s
from shardwise.cost.options import NEVER, Progress
from shardwise.search.chosen import Chosen, time_gap
from shardwise.search.mixed.search import MixedSearch
from shardwise.search.neighbours import Candidate
from shardwise.search.search import Search
from shardwise.search.watch import Watch


@dataclass(frozen=True)
class Simplest:
    """The answer as a point of the searches, and the fastest if that is another."""

    searches: list[Search]
    chosen: Chosen
    faster: Chosen | None


def simplest(searches: Sequence[Search], best: Chosen, progress: Progress) -> Simplest:
    """Returns the strategy with the fewest different choices within the options' epsilon of the
    fastest found."""
    same = Simplest(list(searches), best, None)
    longest_s = tolerated_s(searches, best)
    if longest_s is None:
        return same
    watch = Watch(progress, left_s(searches))
    for one in _candidates(searches, best, watch, longest_s):
        if one.fits and one.time_s <= longest_s:
            if _is(one, best):
                return same
            search, chosen = _added(one)
            return Simplest([search if s is one.search else s for s in searches], chosen, best)
    return same


def tolerated_s(searches: Sequence[Search], best: Chosen) -> float | None:
    """Returns the maximum step of a simpler strategy; None if it is not requested, steps are not
    replayed, or there are several kinds of devices."""
    options = best.search.options
    if options.simplest == NEVER or not options.replays or isinstance(best.search, MixedSearch):
        return None
    longest_s, gap = best.replayed_time_s * (1.0 + options.epsilon), time_gap(searches, best)
    if gap is not None and gap <= options.epsilon:
        longest_s /= 1.0 + gap
    return longest_s


def _candidates(
    searches: Sequence[Search], best: Chosen, watch: Watch, within_s: float
) -> Iterator[Candidate]:
    """Yields candidate answers, the simplest first: named strategies, then the strategy of the
    whole model most like the best."""
    search = best.search
    labels = Labels(search.problem, None, search.replayer, search.limit_bytes)
    own = Candidate.of(best)
    degrees = labels.degrees(own.choices)
    tensor = degrees is not None and degrees.model > 1
    for named in named_strategies(searches, watch, within_s=within_s, tensor=tensor):
        yield named.strategy
    for wanted in labels.candidates(own.choices):
        for choices, edges in labels.like(wanted, own.choices, own.edge_choices):
            replayed = search.replayer.replay(choices[None, :], edges[None, :])
            yield Candidate(
                search, choices, edges, float(replayed.peak_bytes[0]), float(replayed.time_s[0])
            )


def _is(one: Candidate, best: Chosen) -> bool:
    own = Candidate.of(best)
    return one.search is own.search and np.array_equal(one.choices, own.choices)


def _added(one: Candidate) -> tuple[Search, Chosen]:
    """Returns the search with one more strategy as its last point, and that point."""
    search, solution = one.search, one.search.solution
    memory, time = search.problem.summed(one.choices[None, :], one.edge_choices[None, :])
    more = replace(
        solution,
        memory_bytes=np.append(solution.memory_bytes, memory),
        time_s=np.append(solution.time_s, time),
        choices=np.concatenate([solution.choices, one.choices[None, :]]),
        edge_choices=np.concatenate([solution.edge_choices, one.edge_choices[None, :]]),
    )
    found = replace(search, solution=more)
    return found, Chosen(found, len(more.time_s) - 1)
