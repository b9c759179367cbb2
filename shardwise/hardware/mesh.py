"""The mesh: devices placed on nodes, as a grid whose axes are the prime factors of their number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import pairwise, product
from math import prod

import numpy as np
from numpy.typing import NDArray

from shardwise.errors import NotFound
from shardwise.hardware.hardware import Hardware
from shardwise.hardware.levels import BETWEEN, INSIDE, level_names, trimmed


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
    one unit of this level, `ranks` the most ranks of one group in one unit of this level,
    `siblings` the most groups that leave one and the same unit of the level below.
    """

    parts: int
    ranks: int
    siblings: int


@dataclass(frozen=True)
class GroupShape:
    """A group of a collective, the worst of all sibling groups that run at once.

    A node here is a unit of the innermost level that is distinct from the next: a node, or several
    that are linked as one (`levels.py`). `ranks_per_node` is the most ranks of one group on one
    node, `siblings_per_node` the most groups that share one node's network card, `consecutive`
    whether ranks are neighbours, `aligned` whether they are at the same positions of all nodes.
    `levels` is there for more than two levels alone, innermost first.
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
        inside = LevelShape(ranks, ranks, self.size // ranks)
        return (inside, LevelShape(self.nodes, self.size, self.siblings_per_node))

    @property
    def counts(self) -> tuple[int, ...]:
        """Ranks in a node, nodes in a unit of the next level and so on, up to the whole group."""
        if not self.levels:
            return trimmed((self.ranks_per_node, self.nodes))
        return trimmed([level.parts for level in self.levels])


@dataclass(frozen=True)
class Mesh:
    """`gpus` devices of a hardware; rank r is row-major over `axes` (outermost first).

    Devices are in `nodes` nodes of `per_node`. `units` is how many of them are in one unit of each
    level of links but the outermost, innermost first; empty: one level outside nodes. `levels`
    names the levels.
    """

    gpus: int
    nodes: int
    per_node: int
    axes: tuple[MeshAxis, ...]
    units: tuple[int, ...] = ()
    levels: tuple[str, ...] = (INSIDE, BETWEEN)

    @classmethod
    def build(cls, hardware: Hardware, gpus: int) -> Mesh:
        """Places `gpus` devices on as few nodes as hold them, evenly where that divides, these on
        as few units of the next level, and so on. Levels whose links are alike count as one.

        Raises `TooFewDevices` when the hardware has fewer.
        """
        capacity = hardware.max_nodes * hardware.per_node
        if gpus > capacity:
            raise TooFewDevices(
                f"{hardware.name} has {capacity} devices "
                f"({hardware.max_nodes} nodes of {hardware.per_node}), not {gpus}"
            )
        distinct, node = hardware.distinct_levels, hardware.levels[0].size
        capacities = [hardware.per_node * (distinct[0].size // node)]
        capacities += [level.size for level in distinct[1:-1]]
        if len(distinct) == 1:
            capacities = []
        names = level_names(hardware.levels)
        return cls.place(gpus, capacities, names, hardware.per_node)

    @classmethod
    def place(
        cls,
        gpus: int,
        capacities: int | Sequence[int],
        levels: tuple[str, ...] = (INSIDE, BETWEEN),
        per_node: int | None = None,
    ) -> Mesh:
        """Places `gpus` devices on as few nodes of a capacity as hold them.

        Of several capacities each is that of one level of links but the outermost, in units of
        the level below; `per_node` is that of a node where it is not the first.
        """
        if isinstance(capacities, int):
            capacities = (capacities,)
        units: list[int] = []
        count = gpus
        for capacity in capacities:
            units.append((units[-1] if units else 1) * _share(count, capacity))
            count = -(-count // capacity)
        sizes = _inner_first(_factors(gpus), units)
        innermost = units[0] if units else gpus
        if per_node is None or per_node == (capacities[0] if capacities else gpus):
            nodes, in_node = -(-gpus // innermost), innermost
        else:
            whole, rest = divmod(gpus, innermost)
            nodes = whole * -(-innermost // per_node) + -(-rest // per_node)
            in_node = gpus // nodes if gpus % nodes == 0 else per_node
        bare = tuple(MeshAxis(f"m{i}", size, "") for i, size in enumerate(sizes))
        mesh = cls(gpus, nodes, in_node, bare, tuple(units), levels)
        axes = tuple(
            replace(axis, level=levels[mesh.group_level((i,))]) for i, axis in enumerate(bare)
        )
        return replace(mesh, axes=axes)

    @cached_property
    def _shapes(self) -> dict[tuple[int, ...], GroupShape]:
        return {}

    @property
    def _units(self) -> tuple[int, ...]:
        """Devices in one unit of each level but the outermost."""
        return self.units or ((self.per_node,) if len(self.levels) > 1 else ())

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
    sizes: tuple[int, ...], units: tuple[int, ...], axes: tuple[int, ...]
) -> GroupShape:
    offsets, starts = _offsets(sizes, axes)
    size, consecutive = len(offsets), offsets == list(range(len(offsets)))
    if not units:
        return GroupShape(size, 1, size, 1, consecutive)
    places = (np.array(starts)[:, None] + np.array(offsets)).ravel()
    groups = np.arange(len(starts)).repeat(size)
    every = np.ones(len(places), dtype=np.int64)
    group, unit, held, _ = _grouped(groups, places // units[0], every)
    parts, ranks, siblings = [int(held.max())], [int(held.max())], [len(starts)]
    nodes = np.bincount(group)
    positions = np.bincount(_grouped(groups, places % units[0], every)[0])
    # The outermost level is one unit.
    ratios = [outer // inner for inner, outer in pairwise(units)] + [len(places)]
    for ratio in ratios:
        leaving = np.bincount(group)[group] > 1
        siblings.append(int(np.bincount(unit[leaving]).max()) if leaving.any() else 1)
        group, unit, held, within = _grouped(group, unit // ratio, held)
        parts.append(int(within.max()))
        ranks.append(int(held.max()))
    shape = GroupShape(
        size,
        int(nodes.max()),
        ranks[0],
        siblings[1],
        consecutive,
        bool((positions * nodes == size).all()),
    )
    if len(units) == 1:
        return shape
    levels = tuple(LevelShape(*level) for level in zip(parts, ranks, siblings, strict=True))
    return replace(shape, levels=levels)


def _grouped(
    group: NDArray[np.int64], unit: NDArray[np.int64], held: NDArray[np.int64]
) -> tuple[NDArray[np.int64], ...]:
    """Returns every pair of a group and a unit, what it holds, and of how many entries."""
    width = int(unit.max()) + 1
    keys, inverse = np.unique(group * width + unit, return_inverse=True)
    total = np.bincount(inverse, weights=held).astype(np.int64)
    return keys // width, keys % width, total, np.bincount(inverse)


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
