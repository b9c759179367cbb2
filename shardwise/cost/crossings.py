"""Crossings: what it costs when a tensor goes from one group to another, in any two layouts.

Edge costs (TensorOpt Eq. 2 and §4.2, Tensor reuse). A tensor x crosses from group i to group j in
layouts s and d:

    t = A (path(s → d) forward + path(of the gradient, d → s) backward)

for A micro-batches, and the copies that backward needs choose between alternatives:

    neither keeps x                  0
    only j keeps it   after: |x_d|          before: |x_s| and path(s → d) once more
    only i keeps it   0 (counted in i)
    both keep it      both: |x_s| + |x_d|   before: |x_s|, path(s → d)   after: |x_d|, path(d → s)
    s = d             one copy, whichever side needs it

Recomputation changes who needs x: a group that runs forward again keeps nothing that it makes,
and needs all that it reads. Where i and j both run again in one segment, x is rebuilt on the way,
and if s = d also where i alone does and discards what it has made (`Rerun.discarded`):

    rebuilt           0 and path(s → d) once more
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwise.cost.context import CostContext
from shardwise.cost.group_costs import GroupCosts, Port
from shardwise.cost.host import Launching
from shardwise.cost.pins import forbidden_end
from shardwise.cost.reschedule import Rescheduling
from shardwise.cost.space import SearchMesh
from shardwise.errors import BadInput
from shardwise.graph.graph import DTYPE_BYTES
from shardwise.sharding.layout import Floats, Layouts, encode
from shardwise.sharding.pattern import Crossing, GroupPattern

ALTERNATIVES = ("one", "after", "before", "both", "rebuilt")
"""What an edge alternative keeps for backward; `one` when there is nothing to choose."""

ONE, AFTER, BEFORE, BOTH, REBUILT = range(len(ALTERNATIVES))


@dataclass(frozen=True)
class EdgeTable:
    """One edge's choices: alternatives (R, C, A) between rows (source) and columns (target).

    `host_s` is the host's time of a step's collectives; a single 0 if launching is free.
    """

    memory_bytes: Floats
    time_s: Floats
    host_s: Floats
    count: NDArray[np.uint8]
    kept: NDArray[np.int8]
    rows: NDArray[np.uint32]
    columns: NDArray[np.uint32]

    def cell(self, source: int, target: int) -> tuple[int, int]:
        """Returns the row and column of the alternatives of a pair of configurations."""
        return int(self.rows[source]), int(self.columns[target])


@dataclass(frozen=True)
class End:
    """One side of a crossing: layouts of its configurations, and what each needs.

    `again`: recomputation makes the tensor again (at its source) or reads it again (at its target);
    `keeps`: backward needs the tensor on this side, with or without recomputation.
    """

    port: Port
    again: NDArray[np.bool_]
    keeps: NDArray[np.bool_]

    @classmethod
    def of_source(
        cls, context: CostContext, pattern: GroupPattern, costs: GroupCosts, tensor: str
    ) -> End:
        """Returns the side of the group that makes a tensor."""
        patterns, rerun = context.patterns, context.rerun
        kept = patterns.kept_by(tensor, pattern.group.index)
        kept_still = patterns.storage_of(tensor) in rerun.kept(pattern, patterns)
        return cls(
            costs.exits[pattern.exits.index(tensor)],
            costs.recompute & rerun.makes_again(pattern, tensor),
            np.where(costs.recompute, kept_still, kept),
        )

    @classmethod
    def of_target(
        cls, context: CostContext, pattern: GroupPattern, costs: GroupCosts, tensor: str
    ) -> End:
        """Returns the side of a group that reads a tensor."""
        entry = pattern.entries.index(tensor)
        again = costs.recompute & context.rerun.reads_again(pattern, tensor)
        return cls(costs.entries[entry], again, again | pattern.entry_kept[entry])

    @property
    def content(self) -> Hashable:
        return (
            encode(self.port.forward).tobytes(),
            encode(self.port.gradient).tobytes(),
            self.again.tobytes(),
            self.keeps.tobytes(),
        )

    def distinct(self) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Returns the distinct row of each configuration, and one configuration of each row."""
        layouts = [encode(self.port.forward), encode(self.port.gradient)]
        columns = [*layouts, self.again, self.keeps]
        _, first, inverse = np.unique(
            np.stack(columns, axis=1), axis=0, return_index=True, return_inverse=True
        )
        return inverse.reshape(-1).astype(np.uint32), first


@dataclass(frozen=True)
class CrossingKind:
    """A crossing up to names.

    `deferred` says that the source's copy is counted here, on the edge, and not in the source;
    `same_segment` that both groups run again together, `discarded` that the source's second run
    serves the target's backward; `allowed` which copies the pins allow.
    `launch_s` is what the host takes for one collective.
    """

    paths: Rescheduling
    mesh: SearchMesh
    shape: tuple[int, ...]
    item_bytes: int
    backward: bool
    source: End
    target: End
    deferred: bool
    same_segment: bool
    discarded: bool
    allowed: tuple[bool, ...]
    micro_batches: int
    launch_s: float
    content: Hashable

    def register(self) -> None:
        """Registers the layouts between which paths are needed."""
        for port in (self.source.port, self.target.port):
            self.paths.register(port.forward)
            if self.backward:
                self.paths.register(port.gradient)

    def table(self, copies: int) -> EdgeTable:
        """Returns the costs of `copies` such tensors between every pair of layouts."""
        rows, r = self.source.distinct()
        columns, c = self.target.distinct()
        here = self.paths.register(self.source.port.forward[r])[:, None]
        there = self.paths.register(self.target.port.forward[c])[None, :]
        forward = self.paths.distance(here, there)
        gradient = np.zeros_like(forward)
        if self.backward:
            back_from = self.paths.register(self.target.port.gradient[c])[None, :]
            back_to = self.paths.register(self.source.port.gradient[r])[:, None]
            gradient = self.paths.distance(back_from, back_to)
        at_source = self._bytes(self.source.port.forward[r])[:, None]
        at_target = self._bytes(self.target.port.forward[c])[None, :]
        # A reader that moved it has a copy of its own, which is kept.
        serves = self.target.again[c] | (self.target.keeps[c] & (here == there) & self.discarded)
        rebuilt = self.source.again[r][:, None] & serves & self.same_segment
        keeps = self.source.keeps[r][:, None], self.target.keeps[c][None, :] & ~rebuilt

        def filled(counted: Callable[[Floats], Floats]) -> _Cells:
            cells = _Cells(
                forward.shape,
                counted(forward) + counted(gradient),
                counted(forward),
                lambda: counted(self.paths.distance(there, here)),
                at_source,
                at_target,
            )
            self._fill(cells, rebuilt, *keeps, here == there)
            return cells

        cells = filled(lambda seconds: seconds)
        host_s = np.zeros(1)
        if self.launch_s:
            collectives = filled(lambda seconds: (seconds > 0.0).astype(np.float64)).time_s
            host_s = collectives * (copies * self.micro_batches * self.launch_s)
        return EdgeTable(
            cells.memory_bytes * copies,
            cells.time_s * (copies * self.micro_batches),
            host_s,
            cells.count,
            cells.kept,
            rows,
            columns,
        )

    def _fill(
        self,
        cells: _Cells,
        rebuilt: NDArray[np.bool_],
        source_keeps: NDArray[np.bool_],
        target_keeps: NDArray[np.bool_],
        same: NDArray[np.bool_],
    ) -> None:
        """Fills in the alternatives of each pair of layouts."""
        everywhere = np.ones(same.shape, dtype=bool)
        source_keeps = source_keeps & everywhere
        # A copy counted by the source costs nothing more here.
        counted = source_keeps if not self.deferred else ~everywhere
        owed = source_keeps & ~counted
        cells.put(rebuilt, REBUILT, 0.0, cells.time + cells.forward)
        unused = ~rebuilt & ~target_keeps
        cells.put(unused, ONE, np.where(owed, cells.at_source, 0.0), cells.time)
        one = target_keeps & same
        cells.put(one, ONE, np.where(counted, 0.0, cells.at_source), cells.time)
        two = target_keeps & ~same
        both = two & owed
        cells.put(both & self._may(BOTH), BOTH, cells.at_source + cells.at_target, cells.time)
        before = cells.time + cells.forward
        if both.any() and self._may(AFTER):
            cells.put(both, AFTER, cells.at_target, cells.time + cells.backward())
        only = two & ~owed
        cells.put(only & self._may(AFTER), AFTER, cells.at_target, cells.time)
        cells.put(two & self._may(BEFORE), BEFORE, np.where(counted, 0.0, cells.at_source), before)
        if (cells.count == 0).any():
            raise BadInput(
                "the pins allow no copy of a re-scheduled tensor",
                field="pin",
                expected="reuse=before or after if only one side needs the tensor",
            )

    def _may(self, alternative: int) -> bool:
        return self.allowed[alternative]

    def _bytes(self, layouts: Layouts) -> Floats:
        # Keeping a partial sum keeps the whole local term, as large as a replica.
        return self.mesh.local_elements(self.shape, layouts) * self.item_bytes


class _Cells:
    """The alternatives of every pair of layouts, filled in one kind at a time."""

    MOST = 3

    def __init__(
        self,
        shape: tuple[int, ...],
        time: Floats,
        forward: Floats,
        backward: Callable[[], Floats],
        at_source: Floats,
        at_target: Floats,
    ) -> None:
        self.time = time
        self.forward = forward
        self.backward = backward
        self.at_source = at_source
        self.at_target = at_target
        self._shape = shape
        self._memory = np.zeros((*shape, self.MOST))
        self._time = np.zeros((*shape, self.MOST))
        self._kept = np.zeros((*shape, self.MOST), dtype=np.int8)
        self.count = np.zeros(shape, dtype=np.uint8)

    def put(
        self, where: NDArray[np.bool_], kept: int, memory_bytes: Floats | float, time_s: Floats
    ) -> None:
        """Adds one alternative to the cells marked `where`."""
        if not where.any():
            return
        cells = np.flatnonzero(where)
        count = self.count.reshape(-1)
        places = cells * self.MOST + count[cells]

        def values(of: Floats | float) -> Floats | float:
            if isinstance(of, float):
                return of
            return np.broadcast_to(of, self._shape).reshape(-1)[cells]

        self._memory.reshape(-1)[places] = values(memory_bytes)
        self._time.reshape(-1)[places] = values(time_s)
        self._kept.reshape(-1)[places] = kept
        count[cells] += 1

    @property
    def _most(self) -> int:
        return int(self.count.max(initial=1))

    @property
    def memory_bytes(self) -> Floats:
        return self._memory[..., : self._most]

    @property
    def time_s(self) -> Floats:
        return self._time[..., : self._most]

    @property
    def kept(self) -> NDArray[np.int8]:
        return np.ascontiguousarray(self._kept[..., : self._most])


def crossing_kind(
    context: CostContext,
    crossing: Crossing,
    patterns: list[GroupPattern],
    costs: list[GroupCosts],
) -> CrossingKind:
    """Returns the key that determines a crossing's costs."""
    source, target = patterns[crossing.source], patterns[crossing.target]
    tensor = context.graph.tensors[crossing.tensor]
    item = DTYPE_BYTES[tensor.dtype]
    backward = context.patterns.carries_gradient(crossing.tensor)
    from_end = End.of_source(context, source, costs[crossing.source], crossing.tensor)
    into_end = End.of_target(context, target, costs[crossing.target], crossing.tensor)
    deferred = source.exit_deferred[source.exits.index(crossing.tensor)]
    same_segment = context.segments[crossing.source] == context.segments[crossing.target]
    discarded = context.rerun.discarded(source)
    forbidden = forbidden_end(context.pins, source.group)
    allowed = tuple(
        name not in ("after", "before", "both") or context.pins.allows(source.group, "reuse", name)
        for name in ALTERNATIVES
    )
    content = (
        tensor.extents,
        item,
        backward,
        from_end.content,
        into_end.content,
        deferred,
        same_segment,
        discarded,
        forbidden,
        allowed,
    )
    return CrossingKind(
        context.rescheduler(tensor.extents, item, forbidden),
        context.mesh,
        tensor.extents,
        item,
        backward,
        from_end,
        into_end,
        deferred,
        same_segment,
        discarded,
        allowed,
        context.micro_batches,
        Launching.of(context).collective_s,
        content,
    )
