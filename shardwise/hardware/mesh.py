"""The mesh: devices placed on nodes, as a grid whose axes are the prime factors of their number."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from math import prod

from shardwise.errors import NotFound
from shardwise.hardware.hardware import Hardware


class TooFewDevices(NotFound):
    """The hardware does not have as many devices; the message is the reason."""


@dataclass(frozen=True)
class MeshAxis:
    """One axis; `level` is where its groups' links are: `inside a node` or `between nodes`."""

    name: str
    size: int
    level: str


@dataclass(frozen=True)
class GroupShape:
    """A group of a collective, the worst of all sibling groups that run at once.

    `ranks_per_node` is the most ranks of one group on one node, `siblings_per_node` the most
    groups that share one node's network card, `consecutive` whether ranks are neighbours.
    """

    size: int
    nodes: int
    ranks_per_node: int
    siblings_per_node: int
    consecutive: bool


INSIDE = "inside a node"
BETWEEN = "between nodes"


@dataclass(frozen=True)
class Mesh:
    """`gpus` devices of a hardware; rank r is row-major over `axes` (outermost first)."""

    gpus: int
    nodes: int
    per_node: int
    axes: tuple[MeshAxis, ...]

    @classmethod
    def build(cls, hardware: Hardware, gpus: int) -> Mesh:
        """Places `gpus` devices on as few nodes as hold them, evenly where that divides.

        Raises `TooFewDevices` when the hardware has fewer.
        """
        capacity = hardware.max_nodes * hardware.per_node
        if gpus > capacity:
            raise TooFewDevices(
                f"{hardware.name} has {capacity} devices "
                f"({hardware.max_nodes} nodes of {hardware.per_node}), not {gpus}"
            )
        return cls.place(gpus, hardware.per_node)

    @classmethod
    def place(cls, gpus: int, capacity: int) -> Mesh:
        """Places `gpus` devices on as few nodes of `capacity` as hold them."""
        nodes = -(-gpus // capacity)
        even = gpus % nodes == 0
        per_node = gpus // nodes if even else capacity
        if even:
            sizes = [*_factors(nodes), *_factors(per_node)]
        else:
            sizes = _inner_first(_factors(gpus), per_node)
        mesh = cls(gpus, nodes, per_node, tuple(MeshAxis("", s, "") for s in sizes))
        axes = []
        for i, size in enumerate(sizes):
            inside = mesh.group_shape((i,)).nodes == 1
            axes.append(MeshAxis(f"m{i}", size, INSIDE if inside else BETWEEN))
        return cls(gpus, nodes, per_node, tuple(axes))

    @cached_property
    def _shapes(self) -> dict[tuple[int, ...], GroupShape]:
        return {}

    def group_shape(self, axes: tuple[int, ...]) -> GroupShape:
        """Returns the worst group that these axes span, from the real placement of ranks."""
        key = tuple(sorted(axes))
        if key not in self._shapes:
            self._shapes[key] = _group_shape(tuple(a.size for a in self.axes), self.per_node, key)
        return self._shapes[key]

    def groups(self, axes: tuple[int, ...]) -> list[list[int]]:
        """Returns the ranks of every sibling group that these axes span, in order."""
        inside, starts = _offsets(tuple(a.size for a in self.axes), axes)
        return [[start + offset for offset in inside] for start in starts]


def _offsets(sizes: tuple[int, ...], axes: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """Returns the ranks of the first group of these axes, and the first rank of every group."""
    strides = [prod(sizes[i + 1 :]) for i in range(len(sizes))]

    def places(chosen: list[int]) -> list[int]:
        ranges = (range(0, sizes[a] * strides[a], strides[a]) for a in chosen)
        return [sum(place) for place in product(*ranges)]

    return places(sorted(axes)), places([a for a in range(len(sizes)) if a not in axes])


@lru_cache(maxsize=4096)
def _group_shape(sizes: tuple[int, ...], per_node: int, axes: tuple[int, ...]) -> GroupShape:
    inside, starts = _offsets(sizes, axes)
    most_nodes = most_ranks = 1
    siblings: dict[int, int] = {}
    for start in starts:
        on_node: dict[int, int] = {}
        for offset in inside:
            node = (start + offset) // per_node
            on_node[node] = on_node.get(node, 0) + 1
        most_nodes = max(most_nodes, len(on_node))
        most_ranks = max(most_ranks, *on_node.values())
        if len(on_node) > 1:
            for node in on_node:
                siblings[node] = siblings.get(node, 0) + 1
    return GroupShape(
        len(inside),
        most_nodes,
        most_ranks,
        max(siblings.values(), default=1),
        inside == list(range(len(inside))),
    )


def _factors(n: int) -> list[int]:
    """Returns the prime factors, ascending."""
    factors, p = [], 2
    while n > 1:
        while n % p == 0:
            factors.append(p)
            n //= p
        p += 1 if p == 2 else 2
    return factors


def _inner_first(factors: list[int], per_node: int) -> list[int]:
    """Puts the factors whose product divides a node innermost, so that their groups stay inside."""
    inner: list[int] = []
    outer = sorted(factors)
    for f in sorted(factors):
        if per_node % (prod(inner) * f) == 0:
            inner.append(f)
            outer.remove(f)
    return [*outer, *inner]
