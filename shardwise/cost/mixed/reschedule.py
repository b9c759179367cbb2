"""Re-scheduling between layouts of a cluster of several kinds.

A node is a layout with the proportion of its shares. Within one proportion paths are as on devices
of one kind (`cost/reschedule.py`); from proportion p to q a tensor keeps its layout m while its
shares change (`RESHARE`), so that a path is

    layout in p  →  m in p  →  m in q  →  layout in q

    shard(d)     what block i has and block j is to have goes from i to j: the overlaps of their
                 intervals; equal shares stay
    replicate    blocks that are to have it and do not get it from those that have it
    partial      terms of blocks that are to have none go to those that are to have one

Copies that pack what is sent and put together what has come are priced as on devices of one kind.
Paths are the same for all devices: those that take least where the slowest place takes longest.
Every place then has its own time along them, and where a path joins places all wait for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

from shardwise import _core
from shardwise.cost.mixed.cluster import BLOCKS, BLOCKS_BIT, Cluster, PlaceMesh
from shardwise.cost.mixed.flows import flows_between
from shardwise.cost.mixed.staging import staged_at
from shardwise.cost.reschedule import Arcs, Step, arcs_between, detours, no_path, packed
from shardwise.hardware import Hardware
from shardwise.sharding.layout import REPLICATE, Floats, Layouts, encode, local_elements

RESHARE = "reshare"
"""The operation of a step that changes the shares of blocks and nothing else."""

Nodes = NDArray[np.int64]


@dataclass(frozen=True)
class _Within:
    """The paths within one proportion: `seconds` (places + 1, layouts, layouts), last whether they
    join places; `slowest` (layouts, layouts) is what they minimise."""

    arcs: Sequence[Arcs]
    predecessor: NDArray[np.int32]
    slowest: Floats
    seconds: Floats


@dataclass(frozen=True)
class _Between:
    """The paths from one proportion to another: by which layout they go (layouts, layouts), the
    seconds of changing the shares (places + 1, layouts), and as in `_Within` those of all."""

    via: Nodes
    reshare_s: Floats
    slowest: Floats
    seconds: Floats


class Paths:
    """All registered layouts of tensors of one shape, under every proportion, and their paths.

    `meshes` and `hardwares` are those of the places; nodes are numbered layout by layout.
    """

    def __init__(
        self,
        cluster: Cluster,
        meshes: list[PlaceMesh],
        shape: tuple[int, ...],
        item_bytes: int,
        forbidden: str | None,
    ) -> None:
        self.cluster = cluster
        self.shape = shape
        self.item_bytes = item_bytes
        self.forbidden = forbidden
        self._meshes = meshes
        self._hardwares: list[Hardware] = [place.hardware for place in cluster.places]
        self._index: dict[int, int] = {}
        self._rows: list[NDArray[np.int8]] = []
        self._within: dict[int, _Within] = {}
        self._between: dict[tuple[int, int], _Between] = {}
        self._known: Floats | None = None

    @property
    def count(self) -> int:
        """How many proportions there are."""
        return len(self.cluster.proportions)

    def mesh(self, place: int) -> PlaceMesh:
        """Returns the mesh as a place sees it; the last says where places are joined."""
        return self._meshes[place]

    def register(self, layouts: Layouts) -> Nodes:
        """Returns the nodes of placed layouts, (K,)."""
        rows, proportions = encode(layouts[:, :-1]), layouts[:, -1]
        unique, first, inverse = np.unique(rows, return_index=True, return_inverse=True)
        numbers = [
            self._add(code, layouts[i, :-1])
            for code, i in zip(unique.tolist(), first.tolist(), strict=True)
        ]
        return np.array(numbers, dtype=np.int64)[inverse.reshape(-1)] * self.count + proportions

    def _add(self, code: int, layout: NDArray[np.int8]) -> int:
        if code not in self._index:
            self._index[code] = len(self._rows)
            self._rows.append(layout.copy())
            self._within.clear()
            self._between.clear()
            self._known = None
            for via in detours(layout):
                self._add(int(encode(via[None])[0]), via)
        return self._index[code]

    def layout(self, node: int) -> NDArray[np.int8]:
        """Returns the placed layout of a node."""
        row, proportion = divmod(node, self.count)
        return np.append(self._rows[row], np.int8(proportion))

    def seconds(self, place: int, source: Nodes, target: Nodes) -> Floats:
        """Returns the seconds of a place from each source to each target (broadcast); of the last
        whether the path joins places, 1 or 0."""
        (here, p), (there, q) = np.divmod(source, self.count), np.divmod(target, self.count)
        seconds = self._every[place][p, q, here, there]
        if not np.isfinite(seconds).all():
            raise no_path(self.forbidden, self.shape)
        return np.asarray(seconds)

    @property
    def _every(self) -> Floats:
        """The seconds of all places along all paths, infinite where there is none: (places + 1,
        proportions, proportions, layouts, layouts)."""
        if self._known is None:
            numbers, rows = range(self.count), len(self._rows)
            known = np.empty((len(self._meshes), self.count, self.count, rows, rows))
            for p, q in product(numbers, numbers):
                paths = self._of(p) if p == q else self._from(p, q)
                reached = np.isfinite(paths.slowest)
                known[:, p, q] = np.where(reached, paths.seconds, np.inf)
            self._known = known
        return self._known

    def _from(self, p: int, q: int) -> _Between:
        if (p, q) not in self._between:
            self._between[p, q] = self._find_between(p, q)
        return self._between[p, q]

    def _of(self, p: int) -> _Within:
        if p not in self._within:
            self._within[p] = self._find_within(p)
        return self._within[p]

    def _find_within(self, p: int) -> _Within:
        layouts = np.array(self._rows, dtype=np.int8)
        arcs = [self._arcs(layouts, place, p) for place in range(len(self._meshes))]
        times = np.stack([of_place.time_s for of_place in arcs])
        slowest = times[:-1].max(axis=0)
        first = arcs[0]
        distance, predecessor = _core.shortest_paths(
            len(layouts),
            first.source.astype(np.uint32),
            first.target.astype(np.uint32),
            np.ascontiguousarray(slowest),
        )
        return _Within(arcs, predecessor, distance, _along(first.source, predecessor, times))

    def _arcs(self, layouts: Layouts, place: int, p: int) -> Arcs:
        mesh = _AtProportion(self._meshes[place], p)
        local = local_elements(self.shape, layouts, mesh.sizes) * self.item_bytes
        hardware = self._hardwares[min(place, len(self._hardwares) - 1)]
        arcs = arcs_between(hardware, mesh, layouts, local, self.forbidden)
        if place == len(self._hardwares) or not self._meshes[place].present[p]:
            return arcs
        # Uneven shares travel padded to the largest.
        padded = (arcs.axes & BLOCKS_BIT > 0) & (not self.cluster.proportions[p].is_even)
        outermost = next((d for d, extent in enumerate(self.shape) if extent > 1), 0)
        return packed(arcs, hardware, local, np.where(padded, -1, outermost))

    def _find_between(self, p: int, q: int) -> _Between:
        first, last = self._of(p), self._of(q)
        layouts = np.array(self._rows, dtype=np.int8)
        reshare = self._reshare_s(layouts, p, q)
        # (from, via, to)
        middle = reshare[:-1].max(axis=0)
        total = first.slowest[:, :, None] + (middle[:, None] + last.slowest)[None]
        via = total.argmin(axis=1)
        here, there = np.arange(len(layouts))[:, None], np.arange(len(layouts))[None]
        seconds = first.seconds[:, here, via] + reshare[:, via] + last.seconds[:, via, there]
        return _Between(via, reshare, total.min(axis=1), seconds)

    def _reshare_s(self, layouts: Layouts, p: int, q: int) -> Floats:
        """Returns the seconds of changing the shares alone, (places + 1, layouts)."""
        state = layouts[:, BLOCKS]
        bare = layouts.copy()
        bare[:, BLOCKS] = REPLICATE
        # What a rank has of a tensor if its block has all of it.
        whole = local_elements(self.shape, bare, self.cluster.search.sizes) * self.item_bytes
        result = np.zeros((len(self._meshes), len(layouts)))
        for value in np.unique(state).tolist():
            of_state = state == value
            extent = self.shape[value] if value >= 0 else value
            for number, (per_byte, fixed) in enumerate(flows_s(self.cluster, extent, p, q)):
                result[number, of_state] = whole[of_state] * per_byte + fixed
            result[-1, of_state] = float(result[:-1, of_state].any())
        for number, hardware in enumerate(self._hardwares):
            result[number] += hardware.copy_times(self._copied_bytes(layouts, whole, number, p, q))
        return result

    def _copied_bytes(self, layouts: Layouts, whole: Floats, place: int, p: int, q: int) -> Floats:
        """Returns what a change of shares reads and writes at a place besides, (layouts,) bytes:
        what it sends is packed, and what it has afterwards put together.

        `whole` is what a rank would have if its block had all.
        """
        mesh, block = self._meshes[place], self.cluster.places[place].block
        after = np.column_stack([layouts, np.full(len(layouts), q, dtype=np.int8)])
        copied = mesh.local_elements(self.shape, after) * self.item_bytes
        proportions = self.cluster.proportions
        for value in np.unique(layouts[:, BLOCKS]).tolist():
            extent = self.shape[value] if value >= 0 else value
            flows = flows_between(proportions[p], proportions[q], extent)
            of_state = layouts[:, BLOCKS] == value
            copied[of_state] += whole[of_state] * flows[block].sum()
        return np.asarray(2.0 * copied)

    def steps(self, place: int, source: int, target: int) -> list[Step]:
        """Returns the steps of a path as a place sees them; results are placed layouts."""
        here, p = divmod(source, self.count)
        there, q = divmod(target, self.count)
        if p == q:
            return self._steps(place, here, there, p)
        between = self._from(p, q)
        via = int(between.via[here, there])
        seconds = float(between.reshare_s[place, via])
        mesh = self._meshes[place]
        to = self.layout(via * self.count + q)
        moved = mesh.local_elements(self.shape, to[None, :])[0] * self.item_bytes
        middle = Step(RESHARE, 1 << BLOCKS, float(moved), seconds, tuple(to.tolist()))
        return [
            *self._steps(place, here, via, p),
            middle,
            *self._steps(place, via, there, q),
        ]

    def _steps(self, place: int, here: int, there: int, p: int) -> list[Step]:
        within = self._of(p)
        arcs = within.arcs[place]
        steps: list[Step] = []
        while there != here:
            arc = int(within.predecessor[here, there])
            if arc < 0:
                raise no_path(self.forbidden, self.shape)
            step = arcs.step(arc, self._rows)
            steps.append(
                Step(step.operation, step.axes, step.size_bytes, step.time_s, (*step.result, p))
            )
            there = int(arcs.source[arc])
        return steps[::-1]


@lru_cache(maxsize=65536)
def flows_s(cluster: Cluster, extent: int, p: int, q: int) -> tuple[tuple[float, float], ...]:
    """Returns what every place's links take for a change of shares: seconds per byte, and seconds.

    `extent` is that of the dimension that the blocks share, or `REPLICATE` or `PARTIAL`; bytes are
    those of what a rank would have if its block had all.
    """
    flows = flows_between(cluster.proportions[p], cluster.proportions[q], extent)
    return tuple(cluster.links.flows_s(flows, place.block) for place in cluster.places)


class _AtProportion:
    """The mesh of a place under one proportion, as re-scheduling of one kind takes it."""

    def __init__(self, mesh: PlaceMesh, proportion: int) -> None:
        self._mesh, self._proportion = mesh, proportion
        self.axes = mesh.axes
        self.sizes = mesh.sizes_of(np.array([proportion], dtype=np.int8))[0]

    def collective_times(
        self, hardware: Hardware, operation: str, mask: int, sizes_bytes: Floats
    ) -> Floats:
        return self._mesh.collective_times(hardware, operation, mask, sizes_bytes, self._proportion)


def _along(source: Nodes, predecessor: NDArray[np.int32], times: Floats) -> Floats:
    """Returns the times of paths by the last arc of each, (kinds, nodes, nodes); 0 where there is
    none."""
    nodes = len(predecessor)
    result = np.zeros((len(times), nodes, nodes))
    arrives = predecessor >= 0
    starts, before = np.nonzero(arrives)[0], source[predecessor[arrives]]
    last = times[:, predecessor[arrives]]
    while True:
        longer = np.zeros_like(result)
        longer[:, arrives] = result[:, starts, before] + last
        if np.array_equal(longer, result):
            return result
        result = longer


class PlaceRescheduler:
    """Re-scheduling of tensors of one shape as the devices of one place see it."""

    def __init__(self, paths: Paths, place: int) -> None:
        self._paths, self._place = paths, place
        self._staged: dict[tuple[int, int], float] = {}

    def register(self, layouts: Layouts) -> Nodes:
        """Returns node numbers of the placed layouts, shape (K,)."""
        return self._paths.register(layouts)

    def distance(self, source: Nodes, target: Nodes) -> Floats:
        """Returns seconds from each source node to each target node (broadcast)."""
        return self._paths.seconds(self._place, source, target)

    def between(self, source: Layouts, target: Layouts) -> Floats:
        """Returns seconds from each source layout to each target layout, row by row."""
        nodes = self.register(np.concatenate([source, target]))
        return self.distance(nodes[: len(source)], nodes[len(source) :])

    def staged_bytes(self, source: Nodes, target: Nodes) -> Floats:
        """Returns what each path between nodes (broadcast) holds besides its two ends."""
        source, target = np.broadcast_arrays(source, target)
        result = np.zeros(source.shape)
        for pair in set(zip(source.ravel().tolist(), target.ravel().tolist(), strict=True)):
            if pair not in self._staged:
                self._staged[pair] = self._staged_on_path(*pair)
            result[(source == pair[0]) & (target == pair[1])] = self._staged[pair]
        return result

    def _staged_on_path(self, source: int, target: int) -> float:
        paths, mesh = self._paths, self._paths.mesh(self._place)
        if mesh.place is None or source == target:
            return 0.0
        results = [step.result for step in self.path(source, target)]
        layouts = np.array([paths.layout(source), *results], dtype=np.int8)
        return staged_at(mesh, mesh.place, paths.shape, layouts) * paths.item_bytes

    def path_between(self, source: tuple[int, ...], target: tuple[int, ...]) -> list[Step]:
        """Returns the steps of the cheapest sequence from one placed layout to another."""
        ends = self.register(np.array([source, target], dtype=np.int8))
        return self.path(int(ends[0]), int(ends[1]))

    def path(self, source: int, target: int) -> list[Step]:
        """Returns the steps of the cheapest sequence from node `source` to node `target`."""
        return self._paths.steps(self._place, source, target)


class Reschedulers:
    """The paths of all shapes of a cluster; every place has its own view of them."""

    def __init__(self, cluster: Cluster, meshes: list[PlaceMesh]) -> None:
        self._cluster, self._meshes = cluster, meshes
        self._paths: dict[tuple[tuple[int, ...], int, str | None], Paths] = {}
        self._views: dict[tuple[int, tuple[int, ...], int, str | None], PlaceRescheduler] = {}

    def view(
        self, place: int, shape: tuple[int, ...], item_bytes: int, forbidden: str | None = None
    ) -> PlaceRescheduler:
        """Returns the rescheduler of tensors of this shape at a place."""
        key = (shape, item_bytes, forbidden)
        if key not in self._paths:
            self._paths[key] = Paths(self._cluster, self._meshes, shape, item_bytes, forbidden)
        if (place, *key) not in self._views:
            self._views[place, *key] = PlaceRescheduler(self._paths[key], place)
        return self._views[place, *key]
