"""What the passes of a micro-batch take at least in ranges of units, communication with them.

The best mean of longest paths through the whole model's step (`search/game.py`) is, as far as it
goes through the groups of a stage, a path through that stage: with weights w of the tasks of one
micro-batch, and a, b slopes of the soft maximum at the host's time,

    t_s >= sum over tasks of w_t p_t + b H_s / A

for the stage of every cut and strategy. The least of such a sum over the strategies of a range is
one elimination. Ranges of 1, 2, 4, ... units are eliminated, those of equal costs once; longer ones
take no less than the sum of their parts.
"""

from __future__ import annotations

from collections.abc import Hashable
from math import inf

import numpy as np

from shardwise.cost.options import Progress
from shardwise.replay.owner_costs import OwnerCosts, priced
from shardwise.search.elimination import least_of
from shardwise.search.game import Bounding, Game
from shardwise.search.pipelines.units import Units
from shardwise.search.search import Search
from shardwise.sharding.layout import Floats

LONGEST = 16
"""The most units of a range that is eliminated."""

MOST = 160
"""The most ranges that are eliminated; beyond, shorter ones are added up."""

QUERIES = 10
"""The most queries for the mean of paths."""


def least_passes_s(search: Search, units: Units, progress: Progress) -> Floats:
    """Returns the seconds that forward and backward of one micro-batch take at least in the units
    from i to j - 1, (U + 1, U + 1), infinite where j <= i; `search` has four micro-batches or more.

    Raises `Cancelled`, and `SolverError` where memory does not do.
    """
    charges = _charges(search, progress)
    parts = _parts(search, units, charges)
    count = len(units)
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


def _charges(search: Search, progress: Progress) -> OwnerCosts:
    """Returns what the best mean of paths charges the owners for one micro-batch."""
    replayer = search.own_replayer
    bounding = Bounding.of(replayer)
    game = Game(search.replayer, bounding, search.options, progress)
    _, first = game.cheapest(game.sums())
    game.play(first, inf, most_queries=QUERIES)
    query = game.best_query(inf)
    assert query is not None
    tasks = bounding.linear.weighted(np.append(query.again[:-2], 0.0))
    host_share = float(query.once[-1]) / search.problem.context.micro_batches
    if replayer.host is None or host_share == 0.0:
        return tasks
    return priced([(1.0, tasks), (host_share, replayer.host)])


def _parts(search: Search, units: Units, charges: OwnerCosts) -> dict[int, Floats]:
    """Returns by length, from 1 on, what the ranges of so many units cost at least, by their first
    unit."""
    problem = search.problem
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
            known[of_kind] = least_of(
                problem,
                charges,
                groups,
                memory_limit_bytes=search.options.search_memory_bytes,
                threads=search.options.threads,
            )
        parts[length] = np.array([known[k] for k in kinds])
        length *= 2
    return parts
