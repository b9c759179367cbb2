"""From a graph on a mesh to the solver's problem: operators are groups, edges are crossings.

Edge costs (TensorOpt Eq. 2 and §4.2, Tensor reuse). A tensor x crosses from group i to group j
in layouts s and d:

    t = path(s → d) forward + path(of the gradient, d → s) backward

and the copies that backward needs choose between alternatives:

    neither keeps x                  0
    only j keeps it   after: |x_d|          before: |x_s| and path(s → d) once more
    only i keeps it   0 (counted in i)
    both keep it      both: |x_s| + |x_d|   before: |x_s|, path(s → d)   after: |x_d|, path(d → s)
    s = d             one copy, whoever needs it
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwise import _core
from shardwise.advise.group_costs import CostContext, GroupCosts, GroupWork, Port
from shardwise.advise.layout import Floats, encode, local_elements
from shardwise.advise.options import Options, Progress
from shardwise.advise.pattern import Crossing, GroupPattern, Patterns
from shardwise.advise.reschedule import Rescheduler, Reschedulers
from shardwise.advise.space import SearchMesh
from shardwise.errors import Cancelled
from shardwise.graph.coarsen import Coarsened
from shardwise.graph.graph import DTYPE_BYTES
from shardwise.hardware import Hardware, Mesh

ALTERNATIVES = ("one", "after", "before", "both")
"""What an edge alternative keeps for backward; `one` when there is nothing to choose."""


@dataclass(frozen=True)
class EdgeTable:
    """One edge's choices: alternatives (R, C, A) between rows (source) and columns (target)."""

    memory_bytes: Floats
    time_s: Floats
    count: NDArray[np.uint8]
    kept: NDArray[np.int8]
    rows: NDArray[np.uint32]
    columns: NDArray[np.uint32]

    def cell(self, source: int, target: int) -> tuple[int, int]:
        """Where the alternatives of a pair of configurations stand."""
        return int(self.rows[source]), int(self.columns[target])


@dataclass(frozen=True)
class SearchEdge:
    """The edge between two groups for one kind of crossing tensor; `tensors` share its costs."""

    source: int
    target: int
    tensors: tuple[str, ...]
    table: EdgeTable


@dataclass
class SearchProblem:
    """Everything about one (graph, hardware, mesh, options): costs, edges, the solver's problem.

    `fixed_memory_bytes` and `fixed_time_s` belong to no choice: constants that all devices hold.
    """

    context: CostContext
    coarsened: Coarsened
    patterns: list[GroupPattern]
    costs: list[GroupCosts]
    edges: list[SearchEdge]
    fixed_memory_bytes: float
    fixed_time_s: float
    problem: _core.Problem


def assemble(
    coarsened: Coarsened,
    patterns: Patterns,
    hardware: Hardware,
    mesh: Mesh,
    options: Options,
    progress: Progress,
) -> SearchProblem:
    """Cost every group and every crossing on the mesh."""
    search_mesh = SearchMesh.build(mesh, options.max_configurations)
    reschedulers = Reschedulers(hardware, search_mesh)
    context = CostContext(
        coarsened.graph, hardware, search_mesh, options, patterns, reschedulers.of
    )
    found = [patterns.pattern(group) for group in coarsened.groups]
    costs = _all_costs(context, found, progress)
    edges = _all_edges(context, found, costs, progress)
    memory, time = _fixed(context, coarsened)
    return SearchProblem(
        context,
        coarsened,
        found,
        costs,
        edges,
        memory,
        time,
        _core_problem(found, costs, edges),
    )


def _all_costs(
    context: CostContext, patterns: list[GroupPattern], progress: Progress
) -> list[GroupCosts]:
    """Patterns alike are costed once; all layouts are registered before any path is sought."""
    work: dict[Hashable, GroupWork] = {}
    for position, pattern in enumerate(patterns):
        if pattern.key not in work:
            _go_on(progress, 0.5 * position / max(len(patterns), 1))
            work[pattern.key] = GroupWork(context, pattern)
            work[pattern.key].register()
    known: dict[Hashable, GroupCosts] = {}
    for position, (key, group) in enumerate(work.items()):
        _go_on(progress, 0.5 + 0.5 * position / len(work))
        known[key] = group.costs()
    return [known[pattern.key] for pattern in patterns]


def _go_on(progress: Progress, fraction: float) -> None:
    if not progress("costs", fraction):
        raise Cancelled


def _all_edges(
    context: CostContext,
    patterns: list[GroupPattern],
    costs: list[GroupCosts],
    progress: Progress,
) -> list[SearchEdge]:
    """Crossings alike between the same groups become one edge; layers share tables."""
    kinds: dict[Hashable, _CrossingKind] = {}
    of_crossing: dict[Crossing, _CrossingKind] = {}
    for crossing in context.patterns.crossings:
        source, target = patterns[crossing.source], patterns[crossing.target]
        out = source.exits.index(crossing.tensor)
        into = target.entries.index(crossing.tensor)
        key = (source.key, out, target.key, into)
        if key not in kinds:
            kinds[key] = _crossing_kind(
                context,
                crossing,
                costs[crossing.source].exits[out],
                costs[crossing.target].entries[into],
                kept_at_source=source.exit_deferred[out],
                kept_at_target=target.entry_kept[into],
                counted_at_source=context.patterns.kept_by(crossing.tensor, crossing.source),
            )
        of_crossing[crossing] = kinds[key]
    for kind in kinds.values():
        kind.register()
    merged: dict[tuple[int, int, Hashable], list[str]] = {}
    first: dict[Hashable, _CrossingKind] = {}
    for crossing, kind in of_crossing.items():
        first.setdefault(kind.content, kind)
        merged.setdefault((crossing.source, crossing.target, kind.content), []).append(
            crossing.tensor
        )
    tables: dict[tuple[Hashable, int], EdgeTable] = {}
    edges = []
    for (source_index, target_index, content), names in merged.items():
        wanted = (content, len(names))
        if wanted not in tables:
            _go_on(progress, 1.0)
            tables[wanted] = first[content].table(len(names))
        edges.append(SearchEdge(source_index, target_index, tuple(names), tables[wanted]))
    return edges


@dataclass(frozen=True)
class _CrossingKind:
    """A crossing up to names: the layouts on both sides and who keeps the tensor."""

    paths: Rescheduler
    sizes: NDArray[np.int64]
    shape: tuple[int, ...]
    item_bytes: int
    backward: bool
    source: Port
    target: Port
    kept_at_source: bool
    kept_at_target: bool
    counted_at_source: bool
    content: Hashable

    def register(self) -> None:
        for layouts in (self.source.forward, self.target.forward):
            self.paths.register(layouts)
        if self.backward:
            for layouts in (self.source.gradient, self.target.gradient):
                self.paths.register(layouts)

    def table(self, copies: int) -> EdgeTable:
        """The costs of `copies` such tensors between every pair of layouts."""
        rows, r = _distinct(self.source)
        columns, c = _distinct(self.target)
        here = self.paths.register(self.source.forward[r])[:, None]
        there = self.paths.register(self.target.forward[c])[None, :]
        forward = self.paths.distance(here, there)
        time = forward.copy()
        if self.backward:
            back_from = self.paths.register(self.target.gradient[c])[None, :]
            back_to = self.paths.register(self.source.gradient[r])[:, None]
            time = time + self.paths.distance(back_from, back_to)
        at_source = self._bytes(self.source.forward[r])[:, None]
        at_target = self._bytes(self.target.forward[c])[None, :]
        same = here == there
        alternatives = self._alternatives(at_source, at_target, time, forward, here, there)
        shape = forward.shape
        memory_bytes = np.zeros((*shape, len(alternatives)))
        time_s = np.zeros_like(memory_bytes)
        kept = np.zeros(memory_bytes.shape, dtype=np.int8)
        for a, (name, memory, seconds) in enumerate(alternatives):
            memory_bytes[..., a] = np.broadcast_to(memory, shape)
            time_s[..., a] = np.broadcast_to(seconds, shape)
            kept[..., a] = ALTERNATIVES.index(name)
        # One layout on both sides is one copy, counted once.
        counted = self.counted_at_source and not self.kept_at_source
        single = at_source if (self.kept_at_target or self.kept_at_source) and not counted else 0.0
        memory_bytes[..., 0] = np.where(same, single, memory_bytes[..., 0])
        time_s[..., 0] = np.where(same, time, time_s[..., 0])
        kept[..., 0] = np.where(same, 0, kept[..., 0])
        count = np.where(same, 1, len(alternatives)).astype(np.uint8)
        return EdgeTable(memory_bytes * copies, time_s * copies, count, kept, rows, columns)

    def _alternatives(
        self,
        at_source: Floats,
        at_target: Floats,
        time: Floats,
        forward: Floats,
        here: NDArray[np.int64],
        there: NDArray[np.int64],
    ) -> list[tuple[str, Floats | float, Floats]]:
        if not self.kept_at_target:
            return [("one", at_source if self.kept_at_source else 0.0, time)]
        if self.kept_at_source:
            return [
                ("both", at_source + at_target, time),
                ("before", at_source, time + forward),
                ("after", at_target, time + self.paths.distance(there, here)),
            ]
        before = 0.0 if self.counted_at_source else at_source
        return [("after", at_target, time), ("before", before, time + forward)]

    def _bytes(self, layouts: NDArray[np.int8]) -> Floats:
        # Keeping a partial sum keeps the whole local term, as large as a replica.
        return local_elements(self.shape, layouts, self.sizes) * self.item_bytes


def _crossing_kind(
    context: CostContext,
    crossing: Crossing,
    source: Port,
    target: Port,
    *,
    kept_at_source: bool,
    kept_at_target: bool,
    counted_at_source: bool,
) -> _CrossingKind:
    tensor = context.graph.tensors[crossing.tensor]
    item = DTYPE_BYTES[tensor.dtype]
    backward = context.patterns.carries_gradient(crossing.tensor)
    content = (
        tensor.shape,
        item,
        backward,
        kept_at_source,
        kept_at_target,
        counted_at_source,
        *(
            encode(layouts).tobytes()
            for layouts in (source.forward, source.gradient, target.forward, target.gradient)
        ),
    )
    return _CrossingKind(
        context.rescheduler(tensor.shape, item),
        context.mesh.sizes,
        tensor.shape,
        item,
        backward,
        source,
        target,
        kept_at_source,
        kept_at_target,
        counted_at_source,
        content,
    )


def _distinct(port: Port) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Per configuration its row among the distinct layout pairs, and one configuration per row."""
    both = np.stack([encode(port.forward), encode(port.gradient)], axis=1)
    _, first, inverse = np.unique(both, axis=0, return_index=True, return_inverse=True)
    return inverse.reshape(-1).astype(np.uint32), first


def _fixed(context: CostContext, coarsened: Coarsened) -> tuple[float, float]:
    """Memory and time of what every device computes in full: constants and buffers."""
    tensors = context.graph.tensors
    memory = float(sum(t.size_bytes for t in tensors.values() if t.role == "buffer"))
    time = 0.0
    device = context.hardware.devices[0]
    for op in coarsened.constants:
        written = float(sum(tensors[o].size_bytes for o in op.outputs))
        if any(_leaves(o, coarsened) for o in op.outputs):
            memory += written
        read = float(sum(tensors[i].size_bytes for i in op.inputs))
        time += float(
            device.roofline_times(
                np.zeros(1), np.array([read + written]), tensors[op.outputs[0]].dtype
            )[0]
        )
    return memory, time


def _leaves(tensor: str, coarsened: Coarsened) -> bool:
    """Whether a group reads this constant; what only constants read is freed at once."""
    return any(op.name in coarsened.group_of for op in coarsened.graph.consumers[tensor])


def _core_problem(
    patterns: list[GroupPattern], costs: list[GroupCosts], edges: list[SearchEdge]
) -> _core.Problem:
    problem = _core.Problem()
    cost_ids: dict[int, int] = {}
    for pattern, cost in zip(patterns, costs, strict=True):
        if id(cost) not in cost_ids:
            cost_ids[id(cost)] = problem.add_costs(cost.memory_bytes, cost.time_s)
        problem.add_operator(pattern.group.name, cost_ids[id(cost)])
    table_ids: dict[int, int] = {}
    for edge in edges:
        table = edge.table
        if id(table) not in table_ids:
            table_ids[id(table)] = problem.add_table(table.memory_bytes, table.time_s, table.count)
        problem.add_edge(edge.source, edge.target, table_ids[id(table)], table.rows, table.columns)
    return problem
