"""The strategies of a group: assignments of mesh axes to its variables.

Axes of one size at one link level are interchangeable, and trying every naming multiplies the space
without adding strategies of single groups. Each assignment is therefore **canonical**: among such
axes the outermost go to the first variable, and so on, axes that replicate last. If axes were only
counted, two edges could contradict each other; a canonical assignment names its axes, so that every
strategy can be executed (docs/adr/0003-canonical-assignments.md).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import combinations_with_replacement, groupby, product
from math import comb, prod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from shardwise.cost.gradient_sums import GradientSum
from shardwise.hardware import GroupShape, Hardware, Mesh, collective_times
from shardwise.sharding.layout import Floats, Layouts, local_elements

EVEN = 0
"""The first proportion of a mesh: every device has an equal share."""

NONE = -1
"""In an assignment: the axis splits no variable of the group; its ranks repeat the work."""


@dataclass(frozen=True)
class SearchAxis:
    """An axis of the search: one or several neighbouring axes of the mesh."""

    name: str
    size: int
    level: str
    base: tuple[int, ...]


@dataclass(frozen=True)
class SearchMesh:
    """The mesh with its axes merged until a group has at most `max_configurations` choices."""

    mesh: Mesh
    axes: tuple[SearchAxis, ...]

    shards_equal_gradients: ClassVar[bool] = True
    """Whether ZeRO shards over axes along which all ranks compute the same gradient."""

    @property
    def gradient_sums(self) -> Sequence[GradientSum | None]:
        """The kinds of gradient sum, that of collectives (None) first."""
        return (None,)

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        return np.array([axis.size for axis in self.axes], dtype=np.int64)

    def group_shape(self, mask: int) -> GroupShape:
        """Returns the group that the axes in the bit mask `mask` span."""
        base = [i for a, axis in enumerate(self.axes) if mask >> a & 1 for i in axis.base]
        return self.mesh.group_shape(tuple(base))

    def collective_times(
        self,
        hardware: Hardware,
        operation: str,
        mask: int,
        sizes_bytes: Floats,
        proportion: int = EVEN,
    ) -> Floats:
        """Returns seconds of one collective over the axes in a bit mask, for each size.

        Of the shares that devices have this mesh knows one `proportion`, even ones.
        """
        return collective_times(hardware, operation, sizes_bytes, self.group_shape(mask))

    def alike_for_collectives(self, proportions: NDArray[np.int8]) -> NDArray[np.int64]:
        """Returns for each proportion (n,) the first one under which collectives of a size take
        equally long."""
        return np.full(len(proportions), EVEN)

    def sizes_of(self, proportions: NDArray[np.int8]) -> NDArray[np.int64] | Floats:
        """Returns the number of shares of this device's size along the axes, (axes,) or under each
        of the proportions (n, axes)."""
        return self.sizes

    def ranks_of(self, proportions: NDArray[np.int8]) -> NDArray[np.int64]:
        """Returns the number of ranks that take part along the axes, (axes,) or under each of the
        proportions (n, axes)."""
        return self.sizes

    def where_present(self, values: Floats, proportions: NDArray[np.int8]) -> Floats:
        """Returns values (n, …), 0 where this device has no share under a proportion (n,)."""
        return values

    def placed(self, layouts: Layouts, proportions: NDArray[np.int8]) -> Layouts:
        """Returns layouts (n, axes) in the form that edges compare, on several kinds of devices
        with a column for the proportion."""
        return layouts

    def local_elements(self, shape: tuple[int, ...], layouts: Layouts) -> Floats:
        """Returns elements of the largest shard of a tensor under each layout of `placed`."""
        return local_elements(shape, layouts, self.sizes)

    @classmethod
    def build(
        cls,
        mesh: Mesh,
        max_configurations: int,
        variables: int = 4,
        units: Collection[int] = (),
    ) -> SearchMesh:
        """Merges the outermost pair of axes of one level until the count is within bounds.

        Merged axes are then split again at the boundaries of `units`, each a number of neighbouring
        devices.
        """
        axes = [_merged(mesh, (i,)) for i in range(len(mesh.axes))]
        while _count(axes, variables) > max_configurations:
            pair = next(
                (i for i in range(len(axes) - 1) if axes[i].level == axes[i + 1].level), None
            )
            if pair is None:
                break
            a, b = axes[pair], axes[pair + 1]
            axes[pair : pair + 2] = [_merged(mesh, a.base + b.base)]
        ends = {len(mesh.axes) - count for count in map(mesh.axes_of_unit, units) if count}
        return cls(mesh, tuple(part for axis in axes for part in _cut(mesh, axis, ends)))


def _merged(mesh: Mesh, base: tuple[int, ...]) -> SearchAxis:
    """Returns neighbouring axes of a mesh as one."""
    axes = [mesh.axes[i] for i in base]
    name, size = "*".join(axis.name for axis in axes), prod(axis.size for axis in axes)
    return SearchAxis(name, size, axes[0].level, base)


def _cut(mesh: Mesh, axis: SearchAxis, starts: Container[int]) -> list[SearchAxis]:
    """Returns an axis in parts that begin at these axes of the mesh."""
    parts: list[tuple[int, ...]] = []
    for i in axis.base:
        if parts and i not in starts:
            parts[-1] += (i,)
        else:
            parts.append((i,))
    return [_merged(mesh, part) for part in parts]


def _classes(axes: list[SearchAxis], leave_out: Container[int] = ()) -> list[list[int]]:
    def kind(i: int) -> tuple[str, int]:
        return axes[i].level, axes[i].size

    free = [i for i in range(len(axes)) if i not in leave_out]
    return [list(run) for _, run in groupby(sorted(free, key=kind), key=kind)]


def _count(axes: list[SearchAxis], variables: int) -> int:
    total = 1
    for run in _classes(axes):
        total *= comb(len(run) + variables, variables)
    return total


def assignments_of_group(mesh: Mesh, max_configurations: int, variables: int) -> int:
    """Returns how many assignments a group of `variables` has on the mesh if all are legal."""
    return _count(list(SearchMesh.build(mesh, max_configurations).axes), variables)


def assignments(
    axes: tuple[SearchAxis, ...],
    variables: int,
    legal: Callable[[int, int], bool],
    pinned: Mapping[int, Sequence[int]] | None = None,
) -> NDArray[np.int8]:
    """Returns every canonical legal assignment, shape (K, axes): a variable's number or NONE.

    `legal(variable, parts)` says whether a variable may be split into that many shares. An axis in
    `pinned` takes each of its variables, in whatever order; only the others are canonical. Without
    pins the first row replicates everything, so K is at least 1.
    """
    pinned = pinned or {}
    rows = _every(axes, variables, pinned) if pinned else _unpinned(axes, variables)
    sizes = np.array([axis.size for axis in axes], dtype=np.int64)
    allowed = np.ones(len(rows), dtype=bool)
    for variable in range(variables):
        parts = np.where(rows == variable, sizes, 1).prod(axis=1)
        some = np.unique(parts)
        verdicts = np.array([count == 1 or legal(variable, count) for count in some.tolist()])
        allowed &= verdicts[np.searchsorted(some, parts)]
    return rows[allowed]


def _every(
    axes: tuple[SearchAxis, ...], variables: int, pinned: Mapping[int, Sequence[int]]
) -> NDArray[np.int8]:
    """Returns every canonical assignment, legal or not; as `assignments`."""
    choices = [NONE, *range(variables)]
    per_class = [([axis], [[v] for v in allowed]) for axis, allowed in pinned.items()]
    for run in _classes(list(axes), leave_out=pinned):
        options = []
        for picks in combinations_with_replacement(range(len(choices)), len(run)):
            # Variables in order first, NONE (position 0) last.
            ordered = sorted(picks, key=lambda p: (p == 0, p))
            options.append([choices[p] for p in ordered])
        per_class.append((run, options))
    rows = []
    for combination in product(*(options for _, options in per_class)):
        row = [NONE] * len(axes)
        for (run, _), picked in zip(per_class, combination, strict=True):
            for axis, variable in zip(run, picked, strict=True):
                row[axis] = variable
        rows.append(row)
    return np.array(rows, dtype=np.int8).reshape(len(rows), len(axes))


@lru_cache(maxsize=16)
def _unpinned(axes: tuple[SearchAxis, ...], variables: int) -> NDArray[np.int8]:
    """Returns every canonical assignment where no axis is pinned."""
    every = _every(axes, variables, {})
    every.flags.writeable = False
    return every


def canonical(axes: tuple[SearchAxis, ...], assignment: NDArray[np.int8]) -> NDArray[np.int8]:
    """Returns the canonical assignment with the same number of shares of every variable at every
    level."""
    result = assignment.copy()
    for run in _classes(list(axes)):
        result[run] = sorted(assignment[run].tolist(), key=lambda v: (v == NONE, v))
    return result
