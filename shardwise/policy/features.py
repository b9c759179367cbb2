"""What the network sees of a problem: relative figures only, so that other sizes work.

Nodes are operator groups and places (classes of alike blocks of devices). Edges are data between
groups both ways, links between places, and between every group and every place how it fits on:
its time there against other places, its memory against the limit. All times and bytes are of data
parallelism with even shares, as the cost model has them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shardwise.cost.mixed.assemble import MixedProblem
from shardwise.cost.mixed.catalogue import ATTENTION, CONVOLUTIONS, LIGHT, PRODUCTS, operator_class
from shardwise.policy.actions import Actions, action_features
from shardwise.policy.architecture import EDGE_VALUES, RELATIONS, Size
from shardwise.policy.arithmetic import Segments
from shardwise.policy.grouping import unit_of
from shardwise.sharding.layout import Floats
from shardwise.sharding.names import sample_variables

SELF, DATA, DATA_BACK, LINK, TO_PLACE, TO_GROUP = range(RELATIONS)
CLASSES = (PRODUCTS, CONVOLUTIONS, ATTENTION, LIGHT)
FINE = 1000.0
"""Shares are shown as log(1 + FINE · share) / log(1 + FINE), so that small ones differ."""
TINY = 1e-12
WAVES = (1.0, 2.0, 4.0)
"""Half periods of the waves that say how deep in the graph a unit is."""

Singles = NDArray[np.float32]
Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Inputs:
    """The network's inputs.

    `groups` (G, …), `places` (P, …); nodes are groups, then places. `edges` (E, …) go from
    `sources` (E,) `into` nodes, ascending. `members` (G,) are the groups unit by unit, `units`
    their segments, `unit_scale` (U, 1) 1 / √size. `shares` (A, P, …) and `actions` (A, …) describe
    actions, `place_weights` (P,) is the part of all blocks that each place has.
    """

    groups: Singles
    places: Singles
    edges: Singles
    sources: Numbers
    into: Segments
    members: Numbers
    units: Segments
    unit_scale: Singles
    unit_features: Singles
    shares: Singles
    actions: Singles
    place_weights: Singles

    @classmethod
    def of(
        cls,
        groups: Floats,
        places: Floats,
        edges: Sequence[tuple[int, int, int, float, float]],
        unit: Numbers,
        unit_features: Floats,
        actions: tuple[Floats, Floats],
        place_weights: Floats,
    ) -> Inputs:
        """Returns the inputs of edges (source, target, relation, values), in any order, and of the
        `unit` (G,) of each group. Every node gets an edge to itself."""
        nodes = len(groups) + len(places)
        every = [*edges, *((node, node, SELF, 0.0, 0.0) for node in range(nodes))]
        every.sort(key=lambda edge: (edge[1], edge[0], edge[2]))
        numbers = np.array([edge[:3] for edge in every], dtype=np.int64)
        values = np.zeros((len(every), RELATIONS + EDGE_VALUES), dtype=np.float32)
        values[np.arange(len(every)), numbers[:, 2]] = 1.0
        values[:, RELATIONS:] = [edge[3:] for edge in every]
        members = np.argsort(unit, kind="stable")
        sizes = np.bincount(unit)
        return cls(
            _single(groups),
            _single(places),
            values,
            np.ascontiguousarray(numbers[:, 0]),
            Segments.of(np.ascontiguousarray(numbers[:, 1]), nodes),
            members,
            Segments.of(unit[members], len(sizes)),
            _single(1.0 / np.sqrt(sizes[:, None])),
            _single(unit_features),
            _single(actions[0]),
            _single(actions[1]),
            _single(place_weights),
        )


def _single(values: Floats) -> Singles:
    return np.ascontiguousarray(values, dtype=np.float32)


def inputs_of(
    problem: MixedProblem, actions: Actions, limits_bytes: Floats, size: Size
) -> tuple[Inputs, Numbers]:
    """Returns the inputs of a problem, and the unit of each group (groups,).

    `limits_bytes` (places,) is what a device of each place may use.
    """
    seen = _Seen(problem, actions, limits_bytes)
    unit = unit_of(
        seen.kinds, seen.seconds.tolist(), seen.pairs, size.most_units, by_class=size.by_class
    )
    described = action_features(problem, actions, seen.speeds, seen.limits)
    return (
        Inputs.of(
            seen.groups(),
            seen.places(),
            list(seen.edges()),
            unit,
            seen.units(unit),
            described,
            seen.blocks,
        ),
        unit,
    )


class _Seen:
    """The figures of a problem under data parallelism with even shares, (places, groups) each."""

    def __init__(self, problem: MixedProblem, actions: Actions, limits_bytes: Floats) -> None:
        self._problem, self._limits_bytes = problem, limits_bytes
        cluster = problem.cluster
        rows = actions.rows[0]
        count = range(len(problem.costs))

        def figures(name: str) -> Floats:
            return np.array(
                [
                    [getattr(place.costs[g], name)[rows[g]] for g in count]
                    for place in problem.places
                ]
            )

        self.compute_s, self.communication_s = figures("compute_s"), figures("communication_s")
        self.parameter_bytes = figures("parameter_bytes")
        self.memory_bytes = self.parameter_bytes + figures("activation_bytes")
        self.blocks = np.array([place.count for place in cluster.places], dtype=np.float64)
        self.blocks /= self.blocks.sum()
        self.seconds = self.blocks @ self.compute_s
        self.speeds = self._relative(1.0 / np.maximum(self.compute_s.sum(axis=1), TINY))
        self.limits = self._relative(limits_bytes)
        kinds: dict[int, int] = {}
        self.kinds = [kinds.setdefault(id(cost), len(kinds)) for cost in problem.costs]
        self.pairs = [(edge.source, edge.target) for edge in problem.edges]

    def _relative(self, values: Floats) -> Floats:
        """Returns values of places relative to the mean over all blocks."""
        return np.asarray(values / (self.blocks @ values))

    @cached_property
    def _depth(self) -> Floats:
        """How far each group is from the first ones, 0 to 1."""
        depth = np.zeros(len(self.kinds))
        for source, target in sorted(self.pairs):
            depth[target] = max(depth[target], depth[source] + 1.0)
        return np.asarray(depth / max(float(depth.max(initial=0.0)), 1.0))

    @cached_property
    def _parameters(self) -> Floats:
        return np.asarray(_shares(self.blocks @ self.parameter_bytes))

    @cached_property
    def _communicates(self) -> Floats:
        communication_s = self.blocks @ self.communication_s
        return np.asarray(communication_s / np.maximum(communication_s + self.seconds, TINY))

    @cached_property
    def _binding(self) -> tuple[float, float]:
        """How much more is communicated than computed, and held than fits, of all groups."""
        communication_s = float((self.blocks @ self.communication_s).sum())
        held = (self.memory_bytes.sum(axis=1) / self._limits_bytes).max()
        return _log(communication_s, float(self.seconds.sum())) / 3, _log(float(held), 1.0) / 3

    def groups(self) -> Floats:
        """Returns the features of groups."""
        problem, count = self._problem, len(self.kinds)
        samples = sample_variables(problem.coarsened)
        alike = np.bincount(self.kinds)[self.kinds]
        slowest, fastest = self.compute_s.max(axis=0), self.compute_s.min(axis=0)
        fits = (self.parameter_bytes / self._limits_bytes[:, None]).max(axis=0)
        classes = [operator_class(pattern.group.anchor) for pattern in problem.patterns]
        columns = [
            _fine(_shares(self.seconds)), _fine(self._parameters),
            _fine(_shares(self.blocks @ self.memory_bytes)), self._communicates,
            self._parameters > 0.0, [bool(variables) for variables in samples], self._depth,
            np.log(alike) / np.log(count + 1.0),
            *([one == name for one in classes] for name in CLASSES),
            *(np.log1p(self._degree(end)) / 2.0 for end in (0, 1)),
            np.log(np.maximum(slowest, TINY) / np.maximum(fastest, TINY)), _fine(fits),
            *(np.full(count, value) for value in self._binding),
        ]  # fmt: skip
        return np.stack([np.asarray(column, dtype=np.float64) for column in columns], axis=1)

    def _degree(self, end: int) -> Floats:
        ends = np.array([pair[end] for pair in self.pairs], dtype=np.int64)
        return np.bincount(ends, minlength=len(self.kinds)).astype(np.float64)

    @cached_property
    def _cards(self) -> Floats:
        """Bytes per second of a node's card at each place."""
        links = self._problem.cluster.links
        return np.array([links.bandwidth(p.block, p.block) for p in self._problem.cluster.places])

    def places(self) -> Floats:
        """Returns the features of places."""
        cluster = self._problem.cluster
        inside = np.array([cluster.links.inside(p.block).bandwidth for p in cluster.places])
        mean = self.blocks @ self._cards
        ones = np.ones(len(self.blocks))
        held = self.memory_bytes.sum(axis=1) / self._limits_bytes
        columns = [
            np.log(self.speeds), np.log(self.limits), self.blocks, np.log(inside / mean) / 3.0,
            np.log(self._cards / mean), np.log(np.maximum(held, TINY)) / 3.0,
            ones * np.log(cluster.blocks.size) / 2.0, ones * np.log(len(cluster.place_of)) / 2.0,
            ones * self._binding[0],
        ]  # fmt: skip
        return np.stack(columns, axis=1)

    def edges(self) -> Iterator[tuple[int, int, int, float, float]]:
        """Yields source, target, relation and values of each edge."""
        problem, groups = self._problem, len(self.kinds)
        tensors = problem.context.graph.tensors
        moved = [sum(tensors[name].size_bytes for name in edge.tensors) for edge in problem.edges]
        shares = _fine(_shares(np.array(moved, dtype=np.float64)))
        for edge, share in zip(problem.edges, shares.tolist(), strict=True):
            yield edge.source, edge.target, DATA, share, 0.0
            yield edge.target, edge.source, DATA_BACK, share, 0.0
        yield from self._links(groups)
        times = np.log(np.maximum(self.compute_s, TINY) / np.maximum(self.seconds, TINY))
        fits = _fine(self.memory_bytes / self._limits_bytes[:, None])
        for place in range(len(self.blocks)):
            for group in range(groups):
                values = float(times[place, group]), float(fits[place, group])
                yield group, groups + place, TO_PLACE, *values
                yield groups + place, group, TO_GROUP, *values

    def _links(self, groups: int) -> Iterator[tuple[int, int, int, float, float]]:
        links, places = self._problem.cluster.links, self._problem.cluster.places
        mean = float(self.blocks @ self._cards)
        for p, one in enumerate(places):
            for q, other in enumerate(places):
                if p != q:
                    near = links.node(one.block) == links.node(other.block)
                    bandwidth = (
                        links.inside(one.block).bandwidth
                        if near
                        else links.bandwidth(one.block, other.block)
                    )
                    yield groups + p, groups + q, LINK, _log(bandwidth, mean) / 3, float(near)

    def units(self, unit: Numbers) -> Floats:
        """Returns the features of units."""
        sizes = np.bincount(unit)

        def summed(values: Floats) -> Floats:
            return np.bincount(unit, weights=values).astype(np.float64)

        depth = summed(self._depth) / sizes
        waves = [wave(np.pi * times * depth) for times in WAVES for wave in (np.sin, np.cos)]
        columns = [
            *waves, _fine(_shares(summed(self.seconds))), _fine(summed(self._parameters)),
            np.log(sizes) / 5.0, summed(self._communicates) / sizes,
        ]  # fmt: skip
        return np.stack(columns, axis=1)


def _shares(values: Floats) -> Floats:
    return np.asarray(values / max(float(values.sum()), TINY))


def _fine(shares: Floats) -> Floats:
    return np.asarray(np.log1p(FINE * shares) / np.log1p(FINE))


def _log(value: float, other: float) -> float:
    """Returns log(value / other), clipped to [-12, 12]."""
    return float(np.clip(np.log(max(value, TINY) / max(other, TINY)), -12.0, 12.0))
