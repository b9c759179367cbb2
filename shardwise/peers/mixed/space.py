"""A peer's strategies on several kinds of devices as replayed points, with the costs of each place.

A peer names a configuration for every group. Every edge takes the alternative whose slowest place
is fastest, and of equals the smaller one; if the strategy then does not fit, the smallest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

import numpy as np
from numpy.typing import NDArray

from shardwise.answers.mixed import label_of, planned_places
from shardwise.cost.mixed.assemble import MixedProblem
from shardwise.cost.options import Options
from shardwise.peers.evaluate import Point, Step, point_of
from shardwise.replay.mixed.replay import MixedReplayer
from shardwise.search.mixed.search import MixedSearch
from shardwise.sharding.layout import Floats

Choices = NDArray[np.uint32]

BEYOND = 10.0
"""A strategy beyond memory counts as this many times slower as it exceeds the limit, relative."""


@dataclass(frozen=True)
class Space:
    """A problem of several kinds, and its strategies as points."""

    problem: MixedProblem
    replayer: MixedReplayer
    options: Options

    @classmethod
    def of(cls, search: MixedSearch) -> Space:
        """Returns the space of a search."""
        return cls(search.problem, search.mixed_replayer, search.options)

    @property
    def micro_batches(self) -> int:
        return self.problem.context.micro_batches

    @property
    def limit_bytes(self) -> float:
        """What a device with the least memory may use, to which peaks are scaled."""
        return float(self.replayer.limits_bytes.min())

    def points(self, choices: Choices) -> list[Point]:
        """Returns the points of strategies (S, groups)."""
        fast = self._points(choices, self._copies.of(choices))
        if all(point.ranking_bytes <= self.limit_bytes for point in fast):
            return fast
        lean = self._points(choices, self._lean_copies.of(choices))
        return [self.better(pair) for pair in zip(fast, lean, strict=True)]

    def point(self, choices: Choices, edge_choices: Choices) -> Point:
        """Returns the point of a strategy whose edges are chosen too."""
        return self._points(choices[None], edge_choices[None])[0]

    def edge_choices(self, choices: Choices) -> Choices:
        """Returns the fastest alternatives of the edges of strategies (S, groups), (S, edges)."""
        return self._copies.of(choices)

    def better(self, points: Sequence[Point]) -> Point:
        """Returns the fastest point that fits, or where none does that of the least peak."""
        return better(points, self.limit_bytes)

    def penalised_s(self, choices: Choices) -> Floats:
        """Returns the replayed times of strategies, longer where they exceed memory, (S,)."""
        replayed = self.replayer.replay(choices, self._copies.of(choices))
        excess = np.maximum(replayed.peak_bytes / self.limit_bytes - 1.0, 0.0)
        return np.asarray(replayed.time_s * (1.0 + BEYOND * excess))

    def _points(self, choices: Choices, edge_choices: Choices) -> list[Point]:
        replayer = self.replayer
        values = replayer.values(choices, edge_choices)
        replayed = replayer.replay_values(values, replayer.host_times(choices, edge_choices))
        peaks, _, _, busy_s = replayer.outcome(values)
        busiest = self.problem.busiest(choices, edge_choices).tolist()
        points = []
        for row, place in enumerate(busiest):
            places = planned_places(
                self.problem, self.options, peaks[row], busy_s[row, 0::2], busy_s[row, 1::2]
            )
            summed = point_of(
                self.problem.places[place],
                choices[row],
                edge_choices[row],
                label_of(self.problem, choices[row]),
            )
            step = Step(
                self.micro_batches,
                float(replayed.peak_bytes[row]),
                float(replayed.time_s[row]),
                float(replayed.exposed_s[row]),
            )
            points.append(replace(summed, step=step, places=tuple(places)))
        return points

    @cached_property
    def _copies(self) -> _Copies:
        return _Copies(self.problem, smallest=False)

    @cached_property
    def _lean_copies(self) -> _Copies:
        return _Copies(self.problem, smallest=True)


def better(points: Sequence[Point], limit_bytes: float) -> Point:
    """Returns the fastest point that fits, or where none does that of the least peak."""

    def rank(point: Point) -> tuple[float, float]:
        return max(point.ranking_bytes - limit_bytes, 0.0), point.ranking_s

    return min(points, key=rank)


def lacks(point: Point) -> str:
    """Returns which places lack memory, and how much; empty where the point fits."""
    lacking = [
        f"{place.name} ({place.kind}) lacks {missing / 2**30:.2f} GiB of "
        f"{place.memory_limit_bytes / 2**30:.2f}"
        for place in point.places
        if (missing := place.peak_bytes - place.memory_limit_bytes) > 0
    ]
    return f"does not fit: {', '.join(lacking)}" if lacking else ""


class _Copies:
    """The alternative that every edge takes."""

    def __init__(self, problem: MixedProblem, *, smallest: bool) -> None:
        known: dict[int, NDArray[np.uint32]] = {}
        self._edges = []
        for number, edge in enumerate(problem.edges):
            table = edge.table
            if id(table) not in known:
                tables = [place.edges[number].table for place in problem.places]
                exists = np.arange(table.kept.shape[2]) < table.count[..., None]
                time = np.max([of.time_s for of in tables], axis=0)
                memory = np.max([of.memory_bytes for of in tables], axis=0)
                keys = (time, memory) if smallest else (memory, time)
                absent = np.logical_not(exists)
                ordered = np.lexsort([np.where(absent, inf, key) for key in keys], axis=2)
                known[id(table)] = ordered[..., 0].astype(np.uint32)
            self._edges.append((edge.source, edge.target, table, known[id(table)]))

    def of(self, choices: Choices) -> Choices:
        """Returns the alternatives of strategies (S, groups), (S, edges)."""
        taken = np.zeros((len(choices), len(self._edges)), dtype=np.uint32)
        for number, (source, target, table, best) in enumerate(self._edges):
            at = table.rows[choices[:, source]], table.columns[choices[:, target]]
            taken[:, number] = best[at]
        return taken
