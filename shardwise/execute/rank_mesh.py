"""The mesh as one rank sees it: its coordinates, process groups, and its share of a tensor.

A dimension split by several axes is split by them in mesh order, each cutting what the one before
left: ceil(extent / size) elements a share, the last share what remains. The largest share is then
ceil(extent / all sizes), as the cost model counts (ceil(ceil(E / a) / b) = ceil(E / ab)), and
gathering the innermost axes gives exactly the share of the outer ones.
"""

from __future__ import annotations

import atexit
import time
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import product
from math import prod
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

from shardwise.errors import ShardwiseError

Layout = tuple[int, ...]
"""Per mesh axis a tensor dimension that it splits, or REPLICATE, or PARTIAL (advise/layout.py)."""

Members = tuple[tuple[int, ...], ...]

_SUBGROUPS: WeakKeyDictionary[Any, WeakValueDictionary[Members, Any]] = WeakKeyDictionary()
"""By the group of everybody and the siblings' ranks, this rank's process group.

Each group of gloo has a thread that wakes a hundred times a second until everything ends: after
27 plans in one process, each with groups of its own, a quarter of a rank's CPU time went there.
So meshes share.
"""

_MESHES: WeakSet[RankMesh] = WeakSet()
"""All that may keep process groups."""

_LAST_TENSORS_S = 0.05
"""How long a thread of gloo has at the interpreter's end to let go of its last tensors."""


class RankMesh:
    """Axes `names` of `sizes`; rank r is row-major over them, outermost first (hardware/mesh.py).

    Without process groups (`rank` given, torch.distributed not initialised) it still answers for
    shapes and shares. Sets of axes are tuples of axis numbers, ascending.
    """

    def __init__(self, names: Sequence[str], sizes: Sequence[int], rank: int) -> None:
        self.names = tuple(names)
        self.sizes = tuple(sizes)
        self.rank = rank
        self._groups: dict[tuple[int, ...], Any] = {}
        _MESHES.add(self)
        if not 0 <= rank < self.world_size:
            raise ShardwiseError(f"rank {rank} is not on a mesh of {self.world_size} devices")

    @property
    def world_size(self) -> int:
        """Devices of the mesh."""
        return prod(self.sizes)

    @cached_property
    def coordinates(self) -> tuple[int, ...]:
        """This rank's place on every axis."""
        return self.coordinates_of(self.rank)

    def coordinates_of(self, rank: int) -> tuple[int, ...]:
        """A rank's place on every axis."""
        found = []
        for size in reversed(self.sizes):
            rank, place = divmod(rank, size)
            found.append(place)
        return tuple(reversed(found))

    def numbers(self, names: Iterable[str]) -> tuple[int, ...]:
        """Axis numbers of axis names, ascending."""
        return tuple(sorted(self.names.index(name) for name in names))

    def parts(self, axes: Sequence[int]) -> int:
        """How many ranks the axes span."""
        return prod(self.sizes[a] for a in axes)

    def index(self, axes: Sequence[int]) -> int:
        """This rank's number among those that the axes span, row-major."""
        found = 0
        for a in axes:
            found = found * self.sizes[a] + self.coordinates[a]
        return found

    def members(self, axes: Sequence[int]) -> list[int]:
        """The ranks that differ from this one along the axes only, in the order of `index`."""
        return self._members(self.coordinates, tuple(axes))

    def _members(self, at: tuple[int, ...], axes: tuple[int, ...]) -> list[int]:
        found = []
        for place in product(*(range(self.sizes[a]) for a in axes)):
            coordinates = list(at)
            for a, p in zip(axes, place, strict=True):
                coordinates[a] = p
            rank = 0
            for size, c in zip(self.sizes, coordinates, strict=True):
                rank = rank * size + c
            found.append(rank)
        return found

    def group(self, axes: Sequence[int]) -> Any:
        """The process group of `members(axes)`; every rank must ask for the same sets in order.

        Ask again instead of keeping it: at the interpreter's end only meshes let go of groups.
        """
        import torch.distributed as dist

        key = tuple(axes)
        if key not in self._groups:
            if len(key) == len(self.sizes) or self.parts(key) == self.world_size:
                self._groups[key] = dist.group.WORLD
            else:
                everyone = map(self.coordinates_of, range(self.world_size))
                seen = dict.fromkeys(tuple(self._members(at, key)) for at in everyone)
                self._groups[key] = _subgroup(tuple(seen))
        return self._groups[key]

    def forget_groups(self) -> None:
        """Keeps no process group any more; `group` makes them anew."""
        self._groups.clear()

    def share(self, extent: int, axes: Sequence[int], at: Sequence[int] | None = None) -> range:
        """The elements of a dimension that the rank at coordinates `at` has; may be empty.

        `axes`: those that split the dimension, in mesh order.
        """
        coordinates = self.coordinates if at is None else at
        start, stop = 0, extent
        for a in axes:
            step = -(-(stop - start) // self.sizes[a])
            start, stop = (
                min(start + step * coordinates[a], stop),
                min(start + step * (coordinates[a] + 1), stop),
            )
        return range(start, stop)

    def shares(self, extent: int, axes: Sequence[int]) -> list[int]:
        """Elements of each share when axes cut a dimension of `extent`, in the order of `index`."""
        lengths = [extent]
        for a in axes:
            lengths = [n for length in lengths for n in _cut(length, self.sizes[a])]
        return lengths

    def local_shape(
        self, shape: Sequence[int], layout: Layout, at: Sequence[int] | None = None
    ) -> tuple[int, ...]:
        """The shape of a part of a tensor of global `shape`: this rank's, or that of coordinates.

        No part is larger in any dimension than that at the origin.
        """
        return tuple(len(self.share(n, axes_of(layout, d), at)) for d, n in enumerate(shape))

    def local_slices(self, shape: Sequence[int], layout: Layout) -> tuple[slice, ...]:
        """Where this rank's part lies in the tensor of global `shape`."""
        shares = [self.share(n, axes_of(layout, d)) for d, n in enumerate(shape)]
        return tuple(slice(s.start, s.stop) for s in shares)


def _subgroup(siblings: Members) -> Any:
    """The group among `siblings` that this rank is in, one for all meshes."""
    import torch.distributed as dist

    known = _SUBGROUPS.setdefault(dist.group.WORLD, WeakValueDictionary())
    if siblings not in known:
        known[siblings], _ = dist.new_subgroups_by_enumeration([list(m) for m in siblings])
    return known[siblings]


@atexit.register
def _let_go() -> None:
    """Let groups that `destroy_process_group` has ended end their threads, too.

    A thread of gloo may be the last to hold a collective's tensors. If it lets them go while the
    interpreter is finalised, it wants the interpreter's lock, and the process aborts.
    """
    meshes = list(_MESHES)
    for mesh in meshes:
        mesh.forget_groups()
    if meshes:
        # Functions of torch have the group of everybody as a default: its threads stay.
        time.sleep(_LAST_TENSORS_S)


def axes_of(layout: Layout, state: int) -> tuple[int, ...]:
    """The axes in this state (a dimension, REPLICATE or PARTIAL), in mesh order."""
    return tuple(a for a, s in enumerate(layout) if s == state)


def _cut(length: int, parts: int) -> list[int]:
    step = -(-length // parts)
    return [max(min(step, length - step * p), 0) for p in range(parts)]
