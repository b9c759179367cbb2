"""Where the ranks of several kinds are: nodes, groups of like nodes, what there is to measure.

A node of a profile has devices of one kind, so a host with two kinds counts as two nodes. Nodes
with one kind and equally many ranks are a group (docs/hardware.md, Several kinds of devices).

Collectives are measured inside each group as on one kind, and over every set of two groups or more:
over one node of each, and over all their nodes. With g the greatest common divisor of ranks per
node, m of g ranks of every node take part for each product m of g's first prime factors; g/m such
groups run at once. Blocks have sizes that divide g, so these are the shapes that plans over evenly
filled nodes have.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import gcd

from shardwise.hardware.mesh import GroupShape, Mesh
from shardwise.measure.shapes import Siblings

MOST_SETS = 16
"""Sets of groups over which collectives are measured: all pairs first, then all groups."""


@dataclass(frozen=True)
class Placed:
    """A rank's kind, and the first rank of its host."""

    kind: str
    host: int


@dataclass(frozen=True)
class MeasuredGroup:
    """Nodes of one kind, each as its ranks."""

    name: str
    kind: str
    nodes: tuple[tuple[int, ...], ...]

    @property
    def per_node(self) -> int:
        """Ranks of each node."""
        return len(self.nodes[0])

    @property
    def ranks(self) -> tuple[int, ...]:
        """All ranks, node by node."""
        return tuple(rank for node in self.nodes for rank in node)


def groups_of(placed: Sequence[Placed]) -> tuple[MeasuredGroup, ...]:
    """Returns the groups of ranks that are placed so, in the order of their first ranks."""
    nodes: dict[Placed, list[int]] = {}
    for rank, place in enumerate(placed):
        nodes.setdefault(place, []).append(rank)
    alike: dict[tuple[str, int], list[tuple[int, ...]]] = {}
    for place, ranks in nodes.items():
        alike.setdefault((place.kind, len(ranks)), []).append(tuple(ranks))
    groups: list[MeasuredGroup] = []
    for (kind, _), members in alike.items():
        groups.append(MeasuredGroup(_free_name(kind, groups), kind, tuple(members)))
    return tuple(groups)


def _free_name(kind: str, others: Sequence[MeasuredGroup]) -> str:
    """Returns a name for a group of this kind that no other group has."""
    stem = re.sub(r"[^a-z0-9_.]+", "-", kind.lower()).strip("-") or "kind"
    stem = stem.removeprefix("nvidia-")
    taken = {group.name for group in others}
    numbered = (f"{stem}.{number}" for number in range(2, len(others) + 3))
    return next(name for name in (stem, *numbered) if name not in taken)


def joint_shapes(groups: Sequence[MeasuredGroup]) -> list[Siblings]:
    """Returns what is measured over several groups, small sets first."""
    found: list[Siblings] = []
    for members in _sets(groups):
        for whole in (False, True):
            if whole and all(len(group.nodes) == 1 for group in members):
                continue
            nodes = [
                (g.name, node) for g in members for node in (g.nodes if whole else g.nodes[:1])
            ]
            found += _over(nodes)
    return found


def _sets(groups: Sequence[MeasuredGroup]) -> list[tuple[MeasuredGroup, ...]]:
    """Returns the sets of groups over which collectives are measured."""
    pairs: list[tuple[MeasuredGroup, ...]] = list(combinations(groups, 2))
    larger = [s for k in range(3, len(groups)) for s in combinations(groups, k)]
    every = [tuple(groups)] if len(groups) > 2 else []
    return [*pairs, *larger[: max(MOST_SETS - len(pairs) - 1, 0)], *every]


def _over(nodes: Sequence[tuple[str, tuple[int, ...]]]) -> list[Siblings]:
    """Returns the shapes of collectives over these nodes, each its group's name and its ranks."""
    common = gcd(*(len(ranks) for _, ranks in nodes))
    factors = [axis.size for axis in Mesh.place(common, common).axes] if common > 1 else []
    shapes, most = [], 1
    for factor in (1, *factors):
        most *= factor
        apart = common // most
        shape = GroupShape(most * len(nodes), len(nodes), most, apart, most == common)
        members = tuple(
            tuple(rank for _, ranks in nodes for rank in ranks[:common][first::apart])
            for first in range(apart)
        )
        names = tuple(sorted(name for name, _ in nodes))
        shapes.append(Siblings(shape, members, len(nodes), names))
    return shapes
