"""The mesh as one rank sees it: its coordinates, process groups, and its share of a tensor.

If several axes split a dimension, they do so in mesh order, each cutting what the one before left:
ceil(extent / size) elements per share, the last share getting the remainder. The largest share is
then ceil(extent / all sizes), as the cost model counts (ceil(ceil(E / a) / b) = ceil(E / ab)), and
gathering the innermost axes gives exactly the share of the outer ones. With devices of several
kinds the outermost axis has uneven shares, and some ranks none (`block_mesh.py`).
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
from shardwise.execute import peers

Layout = tuple[int, ...]
"""Per mesh axis the tensor dimension that it splits, REPLICATE or PARTIAL (sharding/layout.py)."""

Members = tuple[tuple[int, ...], ...]

_SUBGROUPS: WeakKeyDictionary[Any, WeakValueDictionary[Members, Any]] = WeakKeyDictionary()
"""Maps the world group and the siblings' ranks to this rank's process group.

Each gloo group has a thread that wakes a hundred times a second until the process ends: after 27
plans in one process, each with its own groups, these threads took a quarter of a rank's CPU time.
So meshes share groups.
"""

_MESHES: WeakSet[RankMesh] = WeakSet()
"""All meshes that may keep process groups."""

_LAST_TENSORS_S = 0.05
"""How long gloo threads have at interpreter exit to release their last tensors."""


class RankMesh:
    """Axes `names` of `sizes`; rank r is row-major over them, outermost first (hardware/mesh.py).

    Without process groups (`rank` given, torch.distributed not initialised) it can still compute
    shapes and shares. Sets of axes are ascending tuples of axis numbers. `present`: this rank is on
    the mesh.
    """

    present = True

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
        """The number of devices of the mesh."""
        return prod(self.sizes)

    @cached_property
    def coordinates(self) -> tuple[int, ...]:
        """This rank's coordinate on every axis."""
        return self.coordinates_of(self.rank)

    def coordinates_of(self, rank: int) -> tuple[int, ...]:
        """Returns a rank's coordinate on every axis."""
        places = []
        for size in reversed(self.sizes):
            rank, place = divmod(rank, size)
            places.append(place)
        return tuple(reversed(places))

    def numbers(self, names: Iterable[str]) -> tuple[int, ...]:
        """Returns the numbers of these axes, ascending."""
        return tuple(sorted(self.names.index(name) for name in names))

    def parts(self, axes: Sequence[int]) -> int:
        """Returns how many ranks the axes span."""
        return prod(self.sizes[a] for a in axes)

    def index(self, axes: Sequence[int]) -> int:
        """Returns this rank's number among those that the axes span, row-major."""
        index = 0
        for a in axes:
            index = index * self.sizes[a] + self.coordinates[a]
        return index

    def members(self, axes: Sequence[int]) -> list[int]:
        """Returns the ranks that differ from this one only along the axes, ordered by `index`."""
        return self._members(self.coordinates, tuple(axes))

    @property
    def even(self) -> RankMesh:
        """The same ranks with equal shares: this mesh, unless its shares are uneven."""
        return self

    def world_rank(self, rank: int) -> int:
        """Returns the rank in torch.distributed of a rank of this mesh."""
        return rank

    def _members(self, at: tuple[int, ...], axes: tuple[int, ...]) -> list[int]:
        ranks = []
        for place in product(*(range(self.sizes[a]) for a in axes)):
            coordinates = list(at)
            for a, p in zip(axes, place, strict=True):
                coordinates[a] = p
            rank = 0
            for size, c in zip(self.sizes, coordinates, strict=True):
                rank = rank * size + c
            ranks.append(rank)
        return ranks

    def group(self, axes: Sequence[int]) -> Any:
        """Returns the process group of `members(axes)`; all ranks ask for the same sets in order.

        Call this each time instead of keeping the group: at interpreter exit only meshes release
        groups.
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

    @property
    def program_group(self) -> Any:
        """The process group of the ranks that run one program: all, unless there are stages."""
        import torch.distributed as dist

        return dist.group.WORLD

    @property
    def model_group(self) -> Any:
        """The process group of the ranks that have the model together."""
        return self.group(range(len(self.sizes)))

    @property
    def model_size(self) -> int:
        """The number of ranks that have the model together."""
        return self.world_size

    def need(self, axes: Sequence[int]) -> None:
        """Notes that this rank will ask for the process group of axes, where that is created only
        then; here it is created when it is first asked for."""

    def forget_groups(self) -> None:
        """Drops all process groups; `group` creates them again."""
        self._groups.clear()

    def share(self, extent: int, axes: Sequence[int], at: Sequence[int] | None = None) -> range:
        """Returns the elements of a dimension that the rank at coordinates `at` has; may be empty.

        `axes` are those that split the dimension, in mesh order.
        """
        coordinates = self.coordinates if at is None else at
        start, length = 0, extent
        for a in axes:
            first, length = self._part(length, a, coordinates[a])
            start += first
        return range(start, start + length)

    def shares(self, extent: int, axes: Sequence[int]) -> list[int]:
        """Returns the length of each share of `extent` cut by the axes, in the order of `index`."""
        lengths = [extent]
        for a in axes:
            places = range(self.sizes[a])
            lengths = [self._part(length, a, p)[1] for length in lengths for p in places]
        return lengths

    def _part(self, length: int, axis: int, place: int) -> tuple[int, int]:
        """Returns where the share of a place on an axis begins, and its length."""
        step = -(-length // self.sizes[axis])
        start = min(step * place, length)
        return start, min(step, length - start)

    def local_shape(
        self, shape: Sequence[int], layout: Layout, at: Sequence[int] | None = None
    ) -> tuple[int, ...]:
        """Returns the local shape of a tensor of global `shape`, here or on the rank at `at`."""
        return tuple(len(self.share(n, axes_of(layout, d), at)) for d, n in enumerate(shape))

    def largest_shape(self, shape: Sequence[int], layout: Layout) -> tuple[int, ...]:
        """Returns the local shape of the largest part: no part is larger in any dimension."""
        return self.local_shape(shape, layout, (0,) * len(self.sizes))

    def local_slices(self, shape: Sequence[int], layout: Layout) -> tuple[slice, ...]:
        """Returns where this rank's part lies in the tensor of global `shape`."""
        shares = [self.share(n, axes_of(layout, d)) for d, n in enumerate(shape)]
        return tuple(slice(s.start, s.stop) for s in shares)


def _subgroup(siblings: Members) -> Any:
    """Returns the group among `siblings` that this rank is in; all meshes share it."""
    import torch.distributed as dist

    known = _SUBGROUPS.setdefault(dist.group.WORLD, WeakValueDictionary())
    if siblings not in known:
        known[siblings], _ = dist.new_subgroups_by_enumeration([list(m) for m in siblings])
    return known[siblings]


@atexit.register
def _release_groups() -> None:
    """Lets groups that `destroy_process_group` has ended end their threads too.

    A gloo thread may be the last to hold a collective's tensors. If it frees them while the
    interpreter is finalising, it needs the interpreter's lock, and the process aborts.
    """
    meshes = list(_MESHES)
    for mesh in meshes:
        mesh.forget_groups()
    peers.forget()
    if meshes:
        # Functions of torch have the world group as a default argument, so its threads stay.
        time.sleep(_LAST_TENSORS_S)


def axes_of(layout: Layout, state: int) -> tuple[int, ...]:
    """Returns the axes in this state (a dimension, REPLICATE or PARTIAL), in mesh order."""
    return tuple(a for a, s in enumerate(layout) if s == state)
