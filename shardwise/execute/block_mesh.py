"""Meshes of devices of several kinds: uneven shares of blocks, and blocks that have none.

The outermost axis of such a mesh has a place for every block of like devices (hardware/blocks.py).
Under a proportion w it cuts a dimension by largest remainder, in exact integers
(cost/mixed/proportions.py); each block's share is then cut along the inner axes as everywhere.
Blocks of weight 0 are not on the mesh of the proportion at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from msgspec import UNSET, UnsetType

from shardwise.cost.mixed.proportions import Proportion, cut, offsets
from shardwise.documents.plan import PlannedCluster
from shardwise.errors import BadInput
from shardwise.execute.peers import Members, group_of
from shardwise.execute.rank_mesh import Layout, RankMesh
from shardwise.sharding.layout import PARTIAL, REPLICATE

BLOCKS = 0
"""The number of the axis over the blocks."""


class BlockMesh(RankMesh):
    """The ranks that have a share under one proportion of the mesh `whole`.

    `support` are the blocks that have one; ranks of this mesh are numbered over them. Where this
    rank is not `present` only what concerns other ranks may be asked.
    """

    def __init__(
        self, whole: RankMesh, proportion: Proportion, needed: set[Members] | None = None
    ) -> None:
        """`needed` collects the groups that this rank needs (`peers.py`)."""
        self.needed: set[Members] = set() if needed is None else needed
        self.support = proportion.support
        self.weights = tuple(proportion.weights[block] for block in self.support)
        self.inside = whole.world_size // whole.sizes[BLOCKS]
        block, position = divmod(whole.rank, self.inside)
        present = block in self.support
        place = self.support.index(block) if present else 0
        sizes = (len(self.support), *whole.sizes[1:])
        super().__init__(whole.names, sizes, place * self.inside + position)
        self.present = present
        self._parts: dict[int, tuple[int, ...]] = {}

    def world_rank(self, rank: int) -> int:
        place, position = divmod(rank, self.inside)
        return self.support[place] * self.inside + position

    def need(self, axes: Sequence[int]) -> None:
        """Notes that this rank will ask for the process group of axes."""
        if self.present and self.parts(axes) > 1:
            self.needed.add(self._world_members(axes))

    def group(self, axes: Sequence[int]) -> Any:
        return group_of(self._world_members(axes))

    def _world_members(self, axes: Sequence[int]) -> Members:
        return tuple(self.world_rank(rank) for rank in self.members(axes))

    def largest_shape(self, shape: Sequence[int], layout: Layout) -> tuple[int, ...]:
        inner = (0,) * (len(self.sizes) - 1)
        shapes = [self.local_shape(shape, layout, (b, *inner)) for b in range(self.sizes[BLOCKS])]
        return tuple(map(max, zip(*shapes, strict=True)))

    @cached_property
    def even(self) -> RankMesh:
        """The same ranks with equal shares."""
        return _Even(self)

    def _part(self, length: int, axis: int, place: int) -> tuple[int, int]:
        if axis != BLOCKS:
            return super()._part(length, axis, place)
        if length not in self._parts:
            self._parts[length] = offsets(cut(length, self.weights))
        start, stop = self._parts[length][place : place + 2]
        return start, stop - start


class _Even(BlockMesh):
    """The ranks of another mesh with equal shares."""

    def __init__(self, of: BlockMesh) -> None:
        RankMesh.__init__(self, of.names, of.sizes, of.rank)
        self.support, self.inside, self.needed = of.support, of.inside, of.needed
        self.weights = (1,) * len(of.support)
        self.present = of.present
        self._parts = {}


class Proportions:
    """The meshes of all proportions of a plan: by number, one for equal weights.

    With devices of one kind there is one mesh, that of all ranks.
    """

    def __init__(self, whole: RankMesh, cluster: PlannedCluster | UnsetType) -> None:
        self.whole = whole
        self.is_mixed = cluster is not UNSET
        self.needed: set[Members] = set()
        """The groups that this rank needs."""
        self._meshes: list[RankMesh] = []
        known: dict[tuple[int, ...], BlockMesh] = {}
        for planned in cluster.proportions if cluster is not UNSET else ():
            proportion = Proportion(tuple(planned.weights), planned.origin)
            if len(proportion.weights) != whole.sizes[BLOCKS] or not any(proportion.weights):
                raise BadInput(
                    f"the proportion {planned.weights} is not one of {whole.sizes[BLOCKS]} blocks",
                    field="cluster.proportions",
                    expected="a weight for every block, one of them above 0",
                )
            if proportion.reduced not in known:
                known[proportion.reduced] = BlockMesh(whole, proportion, self.needed)
            self._meshes.append(known[proportion.reduced])

    def at(self, number: int | UnsetType) -> RankMesh:
        """Returns the mesh of a proportion, or that of all ranks if there is none.

        Raises `BadInput` for a number that the plan does not have.
        """
        if number is UNSET:
            return self.whole
        if not 0 <= number < len(self._meshes):
            raise BadInput(
                f"the plan has no proportion {number}",
                field="cluster.proportions",
                expected=f"one of {len(self._meshes)}",
            )
        return self._meshes[number]


def is_alike(one: RankMesh, other: RankMesh, layout: Layout) -> bool:
    """Returns whether all ranks have the same part of a tensor of this layout on both meshes."""
    if one is other:
        return True
    if support_of(one) != support_of(other):
        return False
    return not layout or layout[BLOCKS] in (REPLICATE, PARTIAL)


def support_of(mesh: RankMesh) -> tuple[int, ...]:
    """Returns the blocks that have a share."""
    return mesh.support if isinstance(mesh, BlockMesh) else tuple(range(mesh.sizes[BLOCKS]))
