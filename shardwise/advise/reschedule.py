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

A dimension is split by its axes in mesh order, so one collective can only take away or add the
innermost axes of a dimension; an arc that would need more is left out, and the path goes round.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwise import _core
from shardwise.advise.layout import (
    PARTIAL,
    REPLICATE,
    Floats,
    Layouts,
    encode,
    local_elements,
)
from shardwise.advise.space import SearchMesh
from shardwise.errors import SolverError
from shardwise.hardware import Hardware, collective_times

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


class Rescheduler:
    """Re-scheduling of tensors of one shape and item size (bytes) on one mesh.

    Layouts are registered first; the paths between all of them are found together.
    """

    def __init__(
        self, hardware: Hardware, mesh: SearchMesh, shape: tuple[int, ...], item_bytes: int
    ) -> None:
        self._hardware = hardware
        self._mesh = mesh
        self._shape = shape
        self._item_bytes = item_bytes
        self._index: dict[int, int] = {}
        self._rows: list[NDArray[np.int8]] = []
        self._solved = 0
        self._distance: Floats = np.zeros((0, 0))
        self._predecessor: NDArray[np.int32] = np.zeros((0, 0), dtype=np.int32)
        self._arcs: _Arcs | None = None

    def register(self, layouts: Layouts) -> NDArray[np.int64]:
        """Node numbers of the layouts, shape (K,)."""
        codes = encode(layouts)
        unique, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
        numbers = np.array(
            [self._add(int(c), layouts[i]) for c, i in zip(unique, first, strict=True)]
        )
        return numbers[inverse.reshape(-1)]

    def _add(self, code: int, layout: NDArray[np.int8]) -> int:
        if code not in self._index:
            self._index[code] = len(self._rows)
            self._rows.append(layout.copy())
            # Ways round: gather or reduce everything of one kind.
            for state in np.unique(layout[layout != REPLICATE]):
                via = np.where(layout == state, np.int8(REPLICATE), layout)
                self._add(int(encode(via[None, :])[0]), via)
        return self._index[code]

    def distance(self, source: NDArray[np.int64], target: NDArray[np.int64]) -> Floats:
        """Seconds from each source node to each target node (broadcast)."""
        self._solve()
        found = self._distance[source, target]
        if not np.isfinite(found).all():
            raise SolverError(f"no sequence of collectives between two layouts of {self._shape}")
        return found

    def path(self, source: int, target: int) -> list[Step]:
        """The steps of the cheapest sequence from node `source` to node `target`."""
        self._solve()
        assert self._arcs is not None
        steps: list[Step] = []
        while target != source:
            arc = int(self._predecessor[source, target])
            if arc < 0:
                raise SolverError(f"no sequence of collectives for a tensor of {self._shape}")
            steps.append(self._arcs.step(arc, self._rows))
            target = int(self._arcs.source[arc])
        return steps[::-1]

    def _solve(self) -> None:
        if self._solved == len(self._rows):
            return
        layouts = np.array(self._rows, dtype=np.int8)
        local = local_elements(self._shape, layouts, self._mesh.sizes) * self._item_bytes
        self._arcs = _arcs(self._hardware, self._mesh, layouts, local)
        self._distance, self._predecessor = _core.shortest_paths(
            len(layouts),
            self._arcs.source.astype(np.uint32),
            self._arcs.target.astype(np.uint32),
            self._arcs.time_s,
        )
        self._solved = len(self._rows)


@dataclass(frozen=True)
class _Arcs:
    source: NDArray[np.int64]
    target: NDArray[np.int64]
    operation: list[str]
    axes: NDArray[np.int64]
    size_bytes: Floats
    time_s: Floats

    def step(self, arc: int, rows: list[NDArray[np.int8]]) -> Step:
        return Step(
            self.operation[arc],
            int(self.axes[arc]),
            float(self.size_bytes[arc]),
            float(self.time_s[arc]),
            tuple(int(s) for s in rows[int(self.target[arc])]),
        )


def _arcs(hardware: Hardware, mesh: SearchMesh, layouts: Layouts, local: Floats) -> _Arcs:
    """Every pair of layouts that one collective joins."""
    n, axis_count = layouts.shape
    bits = 1 << np.arange(axis_count, dtype=np.int64)
    rows = np.arange(n)
    sources, targets, operations, masks, sizes = [], [], [], [], []
    for source in range(n if axis_count else 0):
        before = layouts[source]
        changed = layouts != before
        first = changed.argmax(axis=1)
        state_before = before[first]
        state_after = layouts[rows, first]
        one_change = (
            ~changed | ((before == state_before[:, None]) & (layouts == state_after[:, None]))
        ).all(axis=1)
        possible = changed.any(axis=1) & one_change
        possible &= (state_after != PARTIAL) | (state_before == REPLICATE)
        possible &= _innermost(changed, first, np.broadcast_to(before, layouts.shape), state_before)
        possible &= _innermost(changed, first, layouts, state_after)
        for target in np.flatnonzero(possible).tolist():
            operation, at_source = _operation(int(state_before[target]), int(state_after[target]))
            sources.append(source)
            targets.append(target)
            operations.append(operation)
            masks.append(int(changed[target] @ bits))
            sizes.append(local[source] if at_source else local[target])
    mask_array, size_array = np.array(masks, dtype=np.int64), np.array(sizes, dtype=np.float64)
    return _Arcs(
        np.array(sources, dtype=np.int64),
        np.array(targets, dtype=np.int64),
        operations,
        mask_array,
        size_array,
        _arc_times(hardware, mesh, operations, mask_array, size_array),
    )


def _innermost(
    changed: NDArray[np.bool_],
    first: NDArray[np.int64],
    layouts: NDArray[np.int8],
    state: NDArray[np.int8],
) -> NDArray[np.bool_]:
    """Whether the changed axes are the innermost of the dimension `state` (vacuous below 0)."""
    axis_count = layouts.shape[1]
    staying = (layouts == state[:, None]) & ~changed
    last_staying = np.where(
        staying.any(axis=1), axis_count - 1 - staying[:, ::-1].argmax(axis=1), -1
    )
    result: NDArray[np.bool_] = (state < 0) | (last_staying < first)
    return result


def _operation(before: int, after: int) -> tuple[str, bool]:
    """The collective of a change, and whether its size is the tensor's before it."""
    if before == REPLICATE:
        return (MASK if after == PARTIAL else SLICE), True
    if before == PARTIAL:
        return ("all_reduce" if after == REPLICATE else "reduce_scatter"), True
    return ("all_gather", False) if after == REPLICATE else ("all_to_all", True)


def _arc_times(
    hardware: Hardware,
    mesh: SearchMesh,
    operations: list[str],
    masks: NDArray[np.int64],
    sizes: Floats,
) -> Floats:
    times = np.zeros(len(operations))
    kinds = np.array(operations)
    for operation in sorted(set(operations) - FREE):
        for mask in np.unique(masks[kinds == operation]):
            chosen = (kinds == operation) & (masks == mask)
            shape = mesh.group_shape(int(mask))
            times[chosen] = collective_times(hardware, operation, sizes[chosen], shape)
    return times
