"""The mesh: devices placed on nodes, as a grid whose axes are the prime factors of their number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import accumulate, product
from math import gcd, prod
from operator import mul

import numpy as np
from numpy.typing import NDArray

from shardwise.errors import NotFound
from shardwise.hardware.hardware import Hardware
from shardwise.hardware.levels import (
    ACROSS_RACK,
    BETWEEN,
    BETWEEN_RACKS,
    INSIDE,
    level_names,
    trimmed,
)

Unit = tuple[int, int]
"""Devices in one unit of a level, and in one of the outermost level that is its uplinks."""


class TooFewDevices(NotFound):
    """The hardware does not have as many devices; the message is the reason."""


@dataclass(frozen=True)
class MeshAxis:
    """One axis; `level` is where its groups' links are, such as `inside a node`."""

    name: str
    size: int
    level: str


@dataclass(frozen=True)
class LevelShape:
    """What a group has at one level of links.

    `parts` is the most units of the level below (ranks, at the innermost) that one group has in
    one unit of this level, `ranks` the most ranks of one group in one unit of this level, `units`
    the most units of this level that one group spans, `siblings` the most groups that leave one
    and the same unit of the level below (1 at the innermost).
    """

    parts: int
    ranks: int
    units: int
    siblings: int


@dataclass(frozen=True)
class GroupShape:
    """A group of a collective, the worst of all sibling groups that run at once.

    A node here is a unit of the innermost level that is distinct from the next: a node, or several
    that are linked as one (`levels.py`). `ranks_per_node` is the most ranks of one group on one
    node, `siblings_per_node` the most groups that share one node's network card, `consecutive`
    whether ranks are neighbours, `aligned` whether they are at the same positions wherever links
    of another kind begin. `levels` is there for more than two levels alone, innermost first.
    """

    size: int
    nodes: int
    ranks_per_node: int
    siblings_per_node: int
    consecutive: bool
    aligned: bool = True
    levels: tuple[LevelShape, ...] = ()

    @property
    def by_level(self) -> tuple[LevelShape, ...]:
        """The group at every level, innermost first."""
        if self.levels:
            return self.levels
        ranks = min(self.ranks_per_node, self.size)
        inside = LevelShape(ranks, ranks, self.nodes, 1)
        return (inside, LevelShape(self.nodes, self.size, 1, self.siblings_per_node))

    @property
    def counts(self) -> tuple[int, ...]:
        """Ranks in a node, nodes in a unit of the next level and so on, up to the whole group."""
        if not self.levels:
            return trimmed((self.ranks_per_node, self.nodes))
        return trimmed([level.parts for level in self.levels])


@dataclass(frozen=True)
class Mesh:
    """`gpus` devices of a hardware; rank r is row-major over `axes` (outermost first).

    Devices are in `nodes` nodes of `per_node`. `units` says of each level of links but the
    outermost, innermost first, how many devices one of its units has, and how many all levels
    that are uplinks of each other have together; empty: nodes and one level outside. `levels`
    names the levels.
    """

    gpus: int
    nodes: int
    per_node: int
    axes: tuple[MeshAxis, ...]
    units: tuple[Unit, ...] = ()
    levels: tuple[str, ...] = (INSIDE, BETWEEN)

    @classmethod
    def build(cls, hardware: Hardware, gpus: int) -> Mesh:
        """Places `gpus` devices on as few nodes as hold them, evenly where that divides.

        What is linked to nodes by uplinks is placed as they are: an NVLink domain is one node here.
        Beyond it levels are filled one after another. Raises `TooFewDevices` when the hardware has
        fewer, `BadInput` when it has groups: a number does not say of which kind devices are.
        """
        hardware.require_no_groups("gpus")
        capacity = hardware.max_nodes * hardware.per_node
        if gpus > capacity:
            raise TooFewDevices(
                f"{hardware.name} has {capacity} devices "
                f"({hardware.max_nodes} nodes of {hardware.per_node}), not {gpus}"
            )
        networks: list[list[int]] = []
        for i, level in enumerate(hardware.distinct_levels):
            if i == 0 or not level.uplinks:
                networks.append([])
            # A node has as many devices as the profile's first kind of device says.
            nodes = level.size // hardware.levels[0].size
            networks[-1].append(level.size if i else hardware.per_node * nodes)
        networks[-1].pop()
        return cls._place(gpus, networks, level_names(hardware.levels), hardware.per_node)

    @classmethod
    def place(cls, gpus: int, capacity: int, nodes_per_rack: int | None = None) -> Mesh:
        """Places `gpus` devices on as few nodes of `capacity` as hold them, rack by rack where
        nodes are in racks."""
        if nodes_per_rack is None:
            return cls._place(gpus, [[capacity], []], (INSIDE, BETWEEN), capacity)
        names = (INSIDE, ACROSS_RACK, BETWEEN_RACKS)
        return cls._place(gpus, [[capacity], [nodes_per_rack]], names, capacity)

    @classmethod
    def _place(
        cls, gpus: int, networks: list[list[int]], names: tuple[str, ...], capacity: int
    ) -> Mesh:
        """Places devices on networks, each the sizes of its levels without the outermost of all."""
        units: list[Unit] = []
        below, count = 1, gpus
        for sizes in networks[:-1]:
            share = _share(count, prod(sizes))
            parts = accumulate(sizes, mul)
            units += [(below * min(part, share), below * share) for part in parts]
            count = -(-count // prod(sizes))
            below *= share
        units += [(min(below * part, gpus), gpus) for part in accumulate(networks[-1], mul)]
        node = below if len(networks) > 1 else gpus
        whole, rest = divmod(gpus, node)
        nodes = whole * -(-node // capacity) + -(-rest // capacity)
        sizes = _inner_first(_factors(gpus), [gcd(*unit) for unit in units])
        bare = tuple(MeshAxis(f"m{i}", size, "") for i, size in enumerate(sizes))
        per_node = gpus // nodes if gpus % nodes == 0 else capacity
        mesh = cls(gpus, nodes, per_node, bare, tuple(units), names)
        axes = tuple(
            replace(axis, level=names[mesh.group_level((i,))]) for i, axis in enumerate(bare)
        )
        return replace(mesh, axes=axes)

    def axes_of_unit(self, unit: int) -> int:
        """Returns how many of the innermost axes a unit of neighbouring devices has; 0 if there is
        none of this size."""
        sizes = [axis.size for axis in reversed(self.axes)]
        products = list(accumulate(sizes, mul))
        return products.index(unit) + 1 if unit in products else 0

    @cached_property
    def _shapes(self) -> dict[tuple[int, ...], GroupShape]:
        return {}

    @property
    def _units(self) -> tuple[Unit, ...]:
        return self.units or (((self.per_node, self.per_node),) if len(self.levels) > 1 else ())

    def group_shape(self, axes: tuple[int, ...]) -> GroupShape:
        """Returns the worst group that these axes span, from the real placement of ranks."""
        key = tuple(sorted(axes))
        if key not in self._shapes:
            self._shapes[key] = _group_shape(tuple(a.size for a in self.axes), self._units, key)
        return self._shapes[key]

    def group_level(self, axes: tuple[int, ...]) -> int:
        """Returns the innermost level, by number, one of whose units holds every group of these
        axes."""
        levels = self.group_shape(axes).by_level
        return max((i for i, level in enumerate(levels) if level.parts > 1), default=0)

    def groups(self, axes: tuple[int, ...]) -> list[list[int]]:
        """Returns the ranks of every sibling group that these axes span, in order."""
        inside, starts = _offsets(tuple(a.size for a in self.axes), axes)
        return [[start + offset for offset in inside] for start in starts]


def _share(count: int, capacity: int) -> int:
    """Returns how many of `count` go into one of the fewest units that hold them, evenly if they
    can."""
    held = -(-count // capacity)
    return count // held if count % held == 0 else capacity


def _offsets(sizes: tuple[int, ...], axes: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """Returns the ranks of the first group of these axes, and the first rank of every group."""
    strides = [prod(sizes[i + 1 :]) for i in range(len(sizes))]

    def places(chosen: list[int]) -> list[int]:
        ranges = (range(0, sizes[a] * strides[a], strides[a]) for a in chosen)
        return [sum(place) for place in product(*ranges)]

    return places(sorted(axes)), places([a for a in range(len(sizes)) if a not in axes])


@lru_cache(maxsize=4096)
def _group_shape(
    sizes: tuple[int, ...], units: tuple[Unit, ...], axes: tuple[int, ...]
) -> GroupShape:
    offsets, starts = _offsets(sizes, axes)
    size, consecutive = len(offsets), offsets == list(range(len(offsets)))
    if not units:
        return GroupShape(size, 1, size, 1, consecutive)
    places = (np.array(starts)[:, None] + np.array(offsets)).ravel()
    groups = np.arange(len(starts)).repeat(size)
    # The outermost level is one unit.
    numbers = [_unit_numbers(places, unit) for unit in units] + [np.zeros_like(places)]
    levels = []
    below = np.arange(len(places))
    for number in numbers:
        _, first, ranks = _grouped(groups, number)
        spanned = np.bincount(groups[first])
        inside = _grouped(groups, below)[1]
        parts = _grouped(groups[inside], number[inside])[2]
        leaving = np.bincount(groups[inside])[groups[inside]] > 1
        siblings = np.bincount(below[inside][leaving]) if leaving.any() else np.ones(1)
        levels.append(
            LevelShape(int(parts.max()), int(ranks.max()), int(spanned.max()), int(siblings.max()))
        )
        below = number
    position = places % units[0][1]
    positions = np.bincount(groups[_grouped(groups, position)[1]])
    node = np.bincount(groups[_grouped(groups, places // units[0][1])[1]])
    return GroupShape(
        size,
        levels[0].units,
        levels[0].ranks,
        levels[1].siblings,
        consecutive,
        bool((positions * node == size).all()),
        tuple(levels) if len(levels) > 2 else (),
    )


def _unit_numbers(places: NDArray[np.int64], unit: Unit) -> NDArray[np.int64]:
    """Returns which unit of a level each device is in."""
    part, whole = unit
    return places // whole * -(-whole // part) + places % whole // part


def _grouped(
    group: NDArray[np.int64], unit: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Returns every pair of a group and a unit, where it is first, and how often it is there."""
    return np.unique(group * (int(unit.max()) + 1) + unit, return_index=True, return_counts=True)


def _factors(n: int) -> list[int]:
    """Returns the prime factors, ascending."""
    factors, p = [], 2
    while n > 1:
        while n % p == 0:
            factors.append(p)
            n //= p
        p += 1 if p == 2 else 2
    return factors


def _inner_first(factors: list[int], units: Sequence[int]) -> list[int]:
    """Puts the factors whose product divides a unit innermost, so that their groups stay inside,
    level by level."""
    inner: list[int] = []
    outer = sorted(factors)
    for unit in units:
        taken: list[int] = []
        for f in list(outer):
            if unit % (prod(inner) * prod(taken) * f) == 0:
                taken.append(f)
                outer.remove(f)
        inner = [*taken, *inner]
    return [*outer, *inner]
