"""A cluster of several kinds: blocks, proportions, places, and its mesh.

The mesh has one outer axis over the n blocks, which the proportions weigh, and the prime factors of
a block's size inside. Blocks of one group with the same weight in every proportion form a *place*,
whose costs are computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from shardwise.cost.gradient_sums import GradientSum
from shardwise.cost.mixed.proportions import Proportion, cut
from shardwise.cost.space import EVEN, SearchMesh
from shardwise.hardware import (
    Blocks,
    DeviceGroup,
    GroupShape,
    Hardware,
    JointLinks,
    Mesh,
    MeshAxis,
    collective_times,
)
from shardwise.hardware.levels import BETWEEN, INSIDE
from shardwise.sharding.layout import PARTIAL, REPLICATE, Floats, Layouts, local_elements

BLOCKS = 0
"""The number of the mesh axis over the blocks."""
BLOCKS_BIT = 1 << BLOCKS


def mesh_of_blocks(blocks: Blocks) -> Mesh:
    """Returns the mesh of a cluster: an axis over its blocks, and those inside a block."""
    return mesh_over(blocks.size, len(blocks.blocks), blocks.nodes)


def mesh_over(size: int, count: int, nodes: int) -> Mesh:
    """Returns the mesh of `count` blocks of a size: an axis over them, and those inside one."""
    inner = Mesh.place(size, size).axes if size > 1 else ()
    axes = [MeshAxis("blocks", count, BETWEEN)]
    axes += [MeshAxis(f"m{i}", axis.size, INSIDE) for i, axis in enumerate(inner)]
    return Mesh(size * count, nodes, size, tuple(axes), (), (INSIDE, BETWEEN))


@dataclass(frozen=True)
class Place:
    """Blocks that are the same under every proportion; `block` is the first of them."""

    name: str
    block: int
    count: int
    group: DeviceGroup
    hardware: Hardware


@dataclass(frozen=True, eq=False)
class Cluster:
    """Blocks with the proportions of their shares, the even one first.

    `extent` is the dimension for which shares are exact, the batch of a micro-batch. `servers` are
    the blocks at which a parameter server may be, `states` proportions of uneven shards of the
    optimizer's state.
    """

    blocks: Blocks
    search: SearchMesh
    links: JointLinks
    proportions: tuple[Proportion, ...]
    extent: int
    servers: tuple[int, ...] = ()
    states: tuple[Proportion, ...] = ()

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """The places, in the order of their first blocks."""
        counts: dict[str, int] = {}
        places = []
        for members in self._alike:
            group = self.blocks.groups[members[0]]
            number = counts[group.name] = counts.get(group.name, 0) + 1
            name = group.name if number == 1 else f"{group.name}.{number}"
            places.append(Place(name, members[0], len(members), group, self.links.view(members[0])))
        return tuple(places)

    @cached_property
    def place_of(self) -> tuple[int, ...]:
        """Per block the number of its place."""
        of_block = {block: n for n, members in enumerate(self._alike) for block in members}
        return tuple(of_block[block] for block in range(len(self.blocks.blocks)))

    @cached_property
    def _alike(self) -> tuple[list[int], ...]:
        """The blocks of each place, in the order of their first ones."""
        alike: dict[object, list[int]] = {}
        weighed = (*self.proportions, *self.states)
        for block, group in enumerate(self.blocks.groups):
            weights = tuple(proportion.weights[block] for proportion in weighed)
            alike.setdefault((group.name, weights, block in self.servers), []).append(block)
        return tuple(alike.values())

    @cached_property
    def _parts(self) -> Floats:
        """Of how many parts like its own a place's largest share is one, (places, proportions);
        infinite where it has none."""
        shares = np.array([cut(self.extent, p.weights) for p in self.proportions], dtype=float)
        most = np.zeros((len(self.places), len(self.proportions)))
        for block, place in enumerate(self.place_of):
            most[place] = np.maximum(most[place], shares[:, block])
        with np.errstate(divide="ignore"):
            return np.asarray(self.extent / most)

    def parts(self, place: int) -> Floats:
        """Returns of how many parts like its own a place's largest share is one, (proportions,)."""
        return np.asarray(self._parts[place])

    @cached_property
    def support_sizes(self) -> NDArray[np.int64]:
        """The number of blocks with a share under each proportion, (proportions,)."""
        return np.array([len(p.support) for p in self.proportions], dtype=np.int64)

    def ranks_inside(self, mask: int) -> int:
        """Returns the number of ranks in a block that the axes of a bit mask span."""
        axes = self.search.axes
        return prod(axis.size for a, axis in enumerate(axes) if a != BLOCKS and mask >> a & 1)


@dataclass(frozen=True)
class PlaceMesh(SearchMesh):
    """The mesh of a cluster at one place.

    Layouts between groups have one column more than axes: the proportion. Without a place it marks
    the collectives that join several places: their time is 1, that of all others 0.
    """

    cluster: Cluster = field(kw_only=True)
    place: int | None = field(kw_only=True)
    sums: tuple[GradientSum | None, ...] = field(kw_only=True)

    shards_equal_gradients: ClassVar[bool] = False

    @property
    def gradient_sums(self) -> Sequence[GradientSum | None]:
        return self.sums

    @cached_property
    def _sizes(self) -> Floats:
        """Parts along the axes under each proportion, (proportions, axes)."""
        own = self.cluster.parts(0 if self.place is None else self.place)
        sizes = np.tile(self.sizes.astype(np.float64), (len(own), 1))
        # Where there is no share, use the even ones; the value is dropped afterwards.
        sizes[:, BLOCKS] = np.where(np.isfinite(own), own, sizes[:, BLOCKS])
        return sizes

    @cached_property
    def _ranks(self) -> NDArray[np.int64]:
        ranks = np.tile(self.sizes, (len(self.cluster.proportions), 1))
        ranks[:, BLOCKS] = self.cluster.support_sizes
        return ranks

    @cached_property
    def present(self) -> NDArray[np.bool_]:
        """Under which proportions the place has a share, (proportions,)."""
        if self.place is None:
            return np.ones(len(self.cluster.proportions), dtype=bool)
        return np.isfinite(self.cluster.parts(self.place))

    @cached_property
    def _first_of_support(self) -> NDArray[np.int64]:
        """The first proportion with the support of each, (proportions,)."""
        supports = [proportion.support for proportion in self.cluster.proportions]
        return np.array([supports.index(support) for support in supports])

    def alike_for_collectives(self, proportions: NDArray[np.int8]) -> NDArray[np.int64]:
        # Times depend on which blocks take part, not on their shares.
        return np.asarray(self._first_of_support[proportions])

    def sizes_of(self, proportions: NDArray[np.int8]) -> Floats:
        return np.asarray(self._sizes[proportions])

    def ranks_of(self, proportions: NDArray[np.int8]) -> NDArray[np.int64]:
        return np.asarray(self._ranks[proportions])

    def where_present(self, values: Floats, proportions: NDArray[np.int8]) -> Floats:
        has = self.present[proportions].reshape(-1, *(1,) * (values.ndim - 1))
        return np.where(has, values, 0.0)

    def placed(self, layouts: Layouts, proportions: NDArray[np.int8]) -> Layouts:
        whole = np.array([p.is_whole for p in self.cluster.proportions])
        state = layouts[:, BLOCKS]
        # Replicated tensors and terms of sums do not depend on the shares.
        alike = whole[proportions] & ((state == REPLICATE) | (state == PARTIAL))
        column = np.where(alike, EVEN, proportions).astype(np.int8)
        return np.concatenate([layouts, column[:, None]], axis=1)

    def local_elements(self, shape: tuple[int, ...], layouts: Layouts) -> Floats:
        bare, proportions = layouts[:, :-1], layouts[:, -1]
        elements = local_elements(shape, bare, self.sizes_of(proportions))
        return self.where_present(np.asarray(elements), proportions)

    def collective_times(
        self,
        hardware: Hardware,
        operation: str,
        mask: int,
        sizes_bytes: Floats,
        proportion: int = EVEN,
    ) -> Floats:
        if not self.present[proportion]:
            return np.zeros_like(sizes_bytes)
        ranks = self.cluster.ranks_inside(mask)
        support = self.cluster.proportions[proportion].support
        joins = bool(mask & BLOCKS_BIT) and len(support) > 1
        if self.place is None:
            return np.full_like(sizes_bytes, float(joins))
        if joins:
            return self.cluster.links.times(operation, sizes_bytes, support, ranks)
        shape = GroupShape(ranks, 1, ranks, 1, consecutive=False)
        return collective_times(hardware, operation, sizes_bytes, shape)
