"""Tensor re-scheduling: the cheapest sequence of collectives between two layouts.

TensorOpt §4.2 (Flexible tensor splitting): nodes are layouts, an arc joins two layouts that one
collective (or a free local slice) turns into one another, its weight is the collective's time;
the cheapest sequence is a shortest path. Arcs, on a set D of axes that all change alike:

    shard(d) → replicate   all_gather      size: the gathered tensor, local to the rank
    partial  → replicate   all_reduce      size: the local tensor
    partial  → shard(d)    reduce_scatter  size: the local tensor before
    shard(c) → shard(d)    all_to_all      size: the local tensor before
    replicate → shard(d)   slice           free
    replicate → partial    mask            free: all ranks but the first hold zero

Where the profile prices packing (`Hardware.packing`), each arc costs the copies it takes besides:
shares of the outermost dimension lie one after another in memory, those of any other are packed
before they are sent and unpacked when they have come; all_reduce, slice and mask write a new
tensor.

A dimension is split by its axes in mesh order, so one collective can only take away or add the
innermost axes of a dimension; an arc that would need more is left out, and the path goes round.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from shardwise import _core
from shardwise.cost.space import SearchMesh
from shardwise.cost.staging import staged_elements
from shardwise.errors import BadInput, InternalError, ShardwiseError, SolverError
from shardwise.graph.graph import Spread
from shardwise.hardware import Hardware
from shardwise.sharding.layout import PARTIAL, REPLICATE, Floats, Layouts, encode, local_elements

SLICE = "slice"
MASK = "mask"
FREE = frozenset({SLICE, MASK})


@dataclass(frozen=True)
class Step:
    """One arc of a path: the collective, its axes as a bit mask, its size and time."""

    operation: str
    axes: int
    size_bytes: float
    time_s: float
    result: tuple[int, ...]


class Rescheduling(Protocol):
    """Re-scheduling of tensors of one shape; layouts are those of `SearchMesh.placed`."""

    def register(self, layouts: Layouts) -> NDArray[np.int64]:
        """Returns node numbers of the layouts, shape (K,)."""
        ...

    def distance(self, source: NDArray[np.int64], target: NDArray[np.int64]) -> Floats:
        """Returns seconds from each source node to each target node (broadcast)."""
        ...

    def between(self, source: Layouts, target: Layouts) -> Floats:
        """Returns seconds from each source layout to each target layout."""
        ...

    def staged_bytes(self, source: NDArray[np.int64], target: NDArray[np.int64]) -> Floats:
        """Returns the bytes that each path between nodes (broadcast) holds besides its two ends."""
        ...

    def path_between(self, source: tuple[int, ...], target: tuple[int, ...]) -> list[Step]:
        """Returns the steps of the cheapest sequence from one layout to another."""
        ...


class Rescheduler:
    """Re-scheduling of tensors of one shape on one mesh, on top of paths that shapes share.

    Layouts are registered first; the paths between all of them are found together.
    """

    def __init__(self, paths: Paths, shape: tuple[int, ...]) -> None:
        self._paths = paths
        self._shape = shape
        order = sorted(range(len(shape)), key=lambda d: shape[d])
        states = [PARTIAL, REPLICATE, *range(len(shape))]
        shared = [PARTIAL, REPLICATE, *(order.index(d) for d in range(len(shape)))]
        # Indexed by state + 2.
        self._to_shared = np.array(shared, dtype=np.int8)
        self._from_shared = np.zeros_like(self._to_shared)
        self._from_shared[self._to_shared + 2] = states
        self._staged: Floats = np.zeros((0, 0))

    def register(self, layouts: Layouts) -> NDArray[np.int64]:
        """Returns node numbers of the layouts, shape (K,)."""
        return self._paths.register(self._to_shared[layouts + 2])

    def distance(self, source: NDArray[np.int64], target: NDArray[np.int64]) -> Floats:
        """Returns seconds from each source node to each target node (broadcast)."""
        seconds = self._paths.distance()[source, target]
        if not np.isfinite(seconds).all():
            raise self._paths.no_path(self._shape)
        return seconds

    def between(self, source: Layouts, target: Layouts) -> Floats:
        """Returns seconds from each source layout to each target layout (row by row, or one to
        all)."""
        return self.distance(self.register(source), self.register(target))

    def staged_bytes(self, source: NDArray[np.int64], target: NDArray[np.int64]) -> Floats:
        """Returns the bytes that each path between nodes (broadcast) holds besides its two ends
        (`staging.py`)."""
        nodes = self._paths.nodes
        if len(self._staged) < nodes:
            grown = np.full((nodes, nodes), np.nan)
            grown[: len(self._staged), : len(self._staged)] = self._staged
            self._staged = grown
        staged = self._staged[source, target]
        unknown = np.isnan(staged)
        if unknown.any():
            ends = (np.broadcast_to(end, staged.shape)[unknown] for end in (source, target))
            for start, end in set(zip(*(end.tolist() for end in ends), strict=True)):
                self._staged[start, end] = self._staged_on_path(start, end)
            staged = self._staged[source, target]
        return np.asarray(staged)

    def _staged_on_path(self, source: int, target: int) -> float:
        layouts = [self._own(self._paths.layout(source))]
        layouts += [step.result for step in self.path(source, target)]
        elements = staged_elements(self._shape, self._paths.sizes, layouts)
        return elements * self._paths.item_bytes

    def path_between(self, source: tuple[int, ...], target: tuple[int, ...]) -> list[Step]:
        """Returns the steps of the cheapest sequence from one layout to another."""
        ends = self.register(np.array([source, target], dtype=np.int8))
        return self.path(int(ends[0]), int(ends[1]))

    def path(self, source: int, target: int) -> list[Step]:
        """Returns the steps of the cheapest sequence from node `source` to node `target`."""
        steps = self._paths.path(source, target)
        return [replace(step, result=self._own(step.result)) for step in steps]

    def _own(self, layout: Iterable[int]) -> tuple[int, ...]:
        """Returns a layout of the paths, in which dimensions are sorted, as one of this shape."""
        return tuple(int(self._from_shared[state + 2]) for state in layout)


class Reschedulers:
    """One rescheduler per shape and item size (bytes); shapes that are permutations share paths."""

    def __init__(self, hardware: Hardware, mesh: SearchMesh) -> None:
        self._hardware = hardware
        self._mesh = mesh
        self._paths: dict[tuple[tuple[int, ...], int, str | None, int], Paths] = {}
        self._known: dict[tuple[tuple[int, ...], int, str | None], Rescheduler] = {}

    def of(
        self, shape: tuple[int, ...], item_bytes: int, forbidden: str | None = None
    ) -> Rescheduler:
        """Returns the rescheduler of tensors of this shape.

        Partial sums never end by `forbidden`.
        """
        known = self._known.get((shape, item_bytes, forbidden))
        if known is None:
            outermost = _outermost(shape) if self._hardware.packing else 0
            key = (tuple(sorted(shape)), item_bytes, forbidden, outermost)
            if key not in self._paths:
                self._paths[key] = Paths(self._hardware, self._mesh, *key)
            known = self._known[shape, item_bytes, forbidden] = Rescheduler(self._paths[key], shape)
        return known


def _outermost(shape: tuple[int, ...]) -> int:
    """Returns which of the sorted dimensions comes first in memory, leaving out those of one
    element."""
    first = next((d for d, extent in enumerate(shape) if extent > 1), 0)
    return sorted(range(len(shape)), key=lambda d: shape[d]).index(first) if shape else 0


class Paths:
    """All registered layouts of tensors of one shape, and the shortest paths between them.

    `outermost` is the dimension whose shares lie one after another in memory.
    """

    def __init__(
        self,
        hardware: Hardware,
        mesh: SearchMesh,
        shape: tuple[int, ...],
        item_bytes: int,
        forbidden: str | None = None,
        outermost: int = 0,
    ) -> None:
        self._hardware = hardware
        self._mesh = mesh
        self._outermost = outermost
        self._forbidden = forbidden
        self._shape = shape
        self.item_bytes = item_bytes
        self._index: dict[int, int] = {}
        self._rows: list[NDArray[np.int8]] = []
        self._solved = 0
        self._distance: Floats = np.zeros((0, 0))
        self._predecessor: NDArray[np.int32] = np.zeros((0, 0), dtype=np.int32)
        self._arcs: Arcs | None = None

    def register(self, layouts: Layouts) -> NDArray[np.int64]:
        """Returns node numbers of the layouts, shape (K,)."""
        codes = encode(layouts)
        unique, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
        known = self._index
        numbers = np.array(
            [
                known[code] if code in known else self._add(code, layouts[i])
                for code, i in zip(unique.tolist(), first.tolist(), strict=True)
            ]
        )
        return numbers[inverse.reshape(-1)]

    def _add(self, code: int, layout: NDArray[np.int8]) -> int:
        if code not in self._index:
            self._index[code] = len(self._rows)
            self._rows.append(layout.copy())
            for via in detours(layout):
                self._add(int(encode(via[None, :])[0]), via)
        return self._index[code]

    @property
    def nodes(self) -> int:
        """The number of registered layouts."""
        return len(self._rows)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """The sizes of the mesh's axes."""
        return self._mesh.sizes

    def layout(self, node: int) -> NDArray[np.int8]:
        """Returns a registered layout (axes,), with its dimensions sorted."""
        return self._rows[node]

    def distance(self) -> Floats:
        """Returns seconds from every node (row) to every node (column), infinite without a path."""
        self._solve()
        return self._distance

    def path(self, source: int, target: int) -> list[Step]:
        """Returns the steps of the cheapest sequence from node `source` to node `target`."""
        self._solve()
        arcs = self._arcs
        if arcs is None:
            raise InternalError(f"no layout of a tensor of {self._shape} is registered")
        steps: list[Step] = []
        while target != source:
            arc = int(self._predecessor[source, target])
            if arc < 0:
                raise self.no_path(self._shape)
            steps.append(arcs.step(arc, self._rows))
            target = int(arcs.source[arc])
        return steps[::-1]

    def no_path(self, shape: tuple[int, ...]) -> ShardwiseError:
        """Returns what to raise when two layouts of a tensor have no path."""
        return no_path(self._forbidden, shape)

    def _solve(self) -> None:
        if self._solved == len(self._rows):
            return
        layouts = np.array(self._rows, dtype=np.int8)
        local = local_elements(self._shape, layouts, self._mesh.sizes) * self.item_bytes
        unbalanced = any(isinstance(extent, Spread) for extent in self._shape)
        arcs = arcs_between(
            self._hardware, self._mesh, layouts, local, self._forbidden, unbalanced=unbalanced
        )
        arcs = packed(arcs, self._hardware, local, self._outermost)
        self._distance, self._predecessor = _core.shortest_paths(
            len(layouts),
            arcs.source.astype(np.uint32),
            arcs.target.astype(np.uint32),
            arcs.time_s,
        )
        self._arcs = arcs
        self._solved = len(self._rows)


def detours(layout: NDArray[np.int8]) -> list[NDArray[np.int8]]:
    """Returns the layouts with everything of one kind gathered or reduced."""
    states = set(layout.tolist()) - {REPLICATE}
    return [np.where(layout == state, np.int8(REPLICATE), layout) for state in states]


def no_path(forbidden: str | None, shape: tuple[int, ...]) -> ShardwiseError:
    """Returns what to raise when two layouts of a tensor have no path.

    `forbidden` is the collective by which partial sums may not end.
    """
    if forbidden is not None:
        return BadInput(
            f"without {forbidden} partial sums of shape {list(shape)} cannot be resolved",
            field="pin",
            expected=f"partial={forbidden} for the operators that make it",
        )
    return SolverError(f"no sequence of collectives between two layouts of {shape}")


class ArcMesh(Protocol):
    """The part of a mesh that arc times need."""

    @property
    def axes(self) -> Sequence[object]: ...

    def collective_times(
        self, hardware: Hardware, operation: str, mask: int, sizes_bytes: Floats
    ) -> Floats: ...


@dataclass(frozen=True)
class Arcs:
    """Pairs of layouts that one collective joins; arrays (arcs,)."""

    source: NDArray[np.int64]
    target: NDArray[np.int64]
    before: NDArray[np.int8]
    after: NDArray[np.int8]
    axes: NDArray[np.int64]
    size_bytes: Floats
    time_s: Floats

    def step(self, arc: int, rows: list[NDArray[np.int8]]) -> Step:
        return Step(
            _operation(int(self.before[arc]), int(self.after[arc])),
            int(self.axes[arc]),
            float(self.size_bytes[arc]),
            float(self.time_s[arc]),
            tuple(int(s) for s in rows[int(self.target[arc])]),
        )


def arcs_between(
    hardware: Hardware,
    mesh: ArcMesh,
    layouts: Layouts,
    local: Floats,
    forbidden: str | None,
    *,
    unbalanced: bool = False,
) -> Arcs:
    """Returns every pair of layouts that one collective joins, with its time.

    `unbalanced`: some device may get more in an all_to_all than it sends, or the other way round.
    """
    source, target, before, after, axes = _core.layout_changes(layouts)
    if forbidden is not None:
        ends = after == REPLICATE if forbidden == "all_reduce" else after >= 0
        kept = ~((before == PARTIAL) & ends)
        source, target, axes = source[kept], target[kept], axes[kept]
        before, after = before[kept], after[kept]
    # The size of an all_gather is that of its result, of all others that of their source.
    gathers = (before >= 0) & (after == REPLICATE)
    size_bytes = np.where(gathers, local[target], local[source])
    if unbalanced:
        swaps = (before >= 0) & (after >= 0)
        size_bytes = np.where(swaps, np.maximum(local[source], local[target]), size_bytes)
    return Arcs(
        source,
        target,
        before,
        after,
        axes,
        size_bytes,
        _arc_times(hardware, mesh, before, after, axes, size_bytes),
    )


def packed(
    arcs: Arcs, hardware: Hardware, local: Floats, outermost: int | NDArray[np.int64]
) -> Arcs:
    """Returns the arcs with the copies that they take besides their collectives.

    `outermost` is the outermost dimension, of all arcs or of each (-1: what is packed anyway).

    Read and written is, of the part before and of the part after,

        all_gather       after, unless it is the outermost dimension
        reduce_scatter   before, likewise
        all_to_all       before, unless to the outermost; after, unless from it
        all_reduce, slice, mask    after
    """
    if not hardware.packing:
        return arcs
    before, after = arcs.before, arcs.after
    free = (before < 0) & ((before == REPLICATE) | (after == REPLICATE))
    brought = (before >= 0) & (before != outermost)
    sent = (before != REPLICATE) & (after >= 0) & (after != outermost)
    after_bytes = np.where(free | brought, local[arcs.target], 0.0)
    before_bytes = np.where(sent, local[arcs.source], 0.0)
    moved = 2.0 * (after_bytes + before_bytes)
    return replace(arcs, time_s=arcs.time_s + hardware.copy_times(moved))


def _operation(before: int, after: int) -> str:
    """Returns the collective of a change."""
    if before == REPLICATE:
        return MASK if after == PARTIAL else SLICE
    if before == PARTIAL:
        return "all_reduce" if after == REPLICATE else "reduce_scatter"
    return "all_gather" if after == REPLICATE else "all_to_all"


def _arc_times(
    hardware: Hardware,
    mesh: ArcMesh,
    before: NDArray[np.int8],
    after: NDArray[np.int8],
    axes: NDArray[np.int64],
    sizes: Floats,
) -> Floats:
    times = np.zeros(len(axes))
    # Which of the six operations, by the kinds of both states (0: split, 1: replicate, 2: partial).
    kinds = -np.minimum(before, 0).astype(np.int64) * 3 - np.minimum(after, 0)
    keys = kinds << len(mesh.axes) | axes
    order = np.argsort(keys, kind="stable")
    starts = np.flatnonzero(np.diff(keys[order], prepend=-1))
    for chosen in np.split(order, starts[1:]) if len(order) else []:
        operation = _operation(int(before[chosen[0]]), int(after[chosen[0]]))
        if operation not in FREE:
            mask = int(axes[chosen[0]])
            times[chosen] = mesh.collective_times(hardware, operation, mask, sizes[chosen])
    return times
