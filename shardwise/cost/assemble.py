"""From a graph on a mesh to the solver's problem: operators are groups, edges are crossings."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shardwise.cost.alike import alike
from shardwise.cost.configurations import group_costs, group_work
from shardwise.cost.context import CostContext
from shardwise.cost.crossings import CrossingKind, EdgeTable, crossing_kind
from shardwise.cost.group_costs import GroupCosts
from shardwise.cost.host import Launching
from shardwise.cost.operator_family import Families
from shardwise.cost.options import Options, Progress, go_on
from shardwise.cost.part import Part, part_of
from shardwise.cost.pins import Pins
from shardwise.cost.reschedule import Reschedulers
from shardwise.cost.software import NEEDED
from shardwise.cost.space import SearchMesh
from shardwise.cost.terms import GroupTerms
from shardwise.hardware import Hardware, Mesh
from shardwise.sharding.coarsen import Coarsened
from shardwise.sharding.layout import Floats
from shardwise.sharding.pattern import Crossing, GroupPattern, Patterns
from shardwise.sharding.rerun import Rerun, rerun_of
from shardwise.sharding.segments import blocks_of_groups, segments


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

    def summed(
        self, choices: NDArray[np.uint32], edge_choices: NDArray[np.uint32]
    ) -> tuple[Floats, Floats]:
        """Returns memory and time of S strategies, (S, groups) and (S, edges), without the fixed
        part.

        Bytes and seconds, shape (S,).
        """
        memory, time = np.zeros(len(choices)), np.zeros(len(choices))
        for g, cost in enumerate(self.costs):
            memory += cost.memory_bytes[choices[:, g]]
            time += cost.time_s[choices[:, g]]
        for e, edge in enumerate(self.edges):
            table = edge.table
            row = table.rows[choices[:, edge.source]]
            at = (row, table.columns[choices[:, edge.target]], edge_choices[:, e])
            memory += table.memory_bytes[at]
            time += table.time_s[at]
        return memory, time

    def alternatives(self, choices: NDArray[np.uint32], *, smallest: bool) -> NDArray[np.uint32]:
        """Returns the fastest alternative of every edge, or the smallest: (S, groups) to
        (S, edges)."""
        taken = np.zeros((len(choices), len(self.edges)), dtype=np.uint32)
        for of in alike([edge.table for edge in self.edges]):
            table = self.edges[of[0]].table
            rows = table.rows[choices[:, [self.edges[e].source for e in of]]]
            at = (rows, table.columns[choices[:, [self.edges[e].target for e in of]]])
            exists = np.arange(table.kept.shape[2]) < table.count[at][..., None]
            memory = np.where(exists, table.memory_bytes[at], np.inf)
            time = np.where(exists, table.time_s[at], np.inf)
            first, second = (memory, time) if smallest else (time, memory)
            taken[:, of] = np.lexsort((second, first), axis=2)[..., 0]
        return taken

    @cached_property
    def sums(self) -> Part:
        """The solver's problem of memory and time added up."""
        summed = [cost.summed for cost in self.costs]
        return part_of(self.patterns, self.costs, self.edges, summed)


def assemble(
    patterns: Patterns,
    hardware: Hardware,
    mesh: Mesh,
    options: Options,
    progress: Progress,
    micro_batches: int = 1,
) -> SearchProblem:
    """Computes the costs of every group and crossing on the mesh.

    `patterns` have the batch of one of the `micro_batches`. Raises `BadInput` for pins that match
    nothing or leave nothing.
    """
    return costed(patterns, hardware, mesh, options, progress, micro_batches).joined(progress)


@dataclass(frozen=True)
class Costed:
    """The groups of a problem, `terms` by kind of group, without crossings.

    Their computation is costed at once, everything else on first use.
    """

    context: CostContext
    coarsened: Coarsened
    patterns: list[GroupPattern]
    terms: dict[Hashable, GroupTerms]
    kinds: list[Hashable]

    def least_compute_s(self) -> float:
        """Returns a lower bound on every strategy's computation, and so on every step."""
        least = {kind: terms.least_compute_s() for kind, terms in self.terms.items()}
        _, fixed = fixed_costs(self.context, self.coarsened)
        return fixed + sum(least[kind] for kind in self.kinds)

    def least_host_s(self) -> float:
        """Returns a lower bound on the host's time of every strategy's step."""
        fixed = fixed_host_s(self.context, self.coarsened)
        return fixed + sum(self.terms[kind].host.least_s for kind in self.kinds)

    def costs(self, progress: Progress) -> list[GroupCosts]:
        """Returns the configurations of every group; all layouts are registered before any path is
        computed."""
        for terms in self.terms.values():
            terms.work.register()
        known: dict[Hashable, GroupCosts] = {}
        for position, (kind, terms) in enumerate(self.terms.items()):
            go_on(progress, "costs", 0.5 + 0.5 * position / len(self.terms))
            known[kind] = group_costs(terms)
        return [known[kind] for kind in self.kinds]

    def alone(self) -> SearchProblem:
        """Returns a problem without configurations, only for its figures."""
        return self._problem([], [])

    def joined(self, progress: Progress) -> SearchProblem:
        """Returns the problem with all configurations and crossings."""
        costs = self.costs(progress)
        return self._problem(costs, all_edges(self.context, self.patterns, costs, progress))

    def _problem(self, costs: list[GroupCosts], edges: list[SearchEdge]) -> SearchProblem:
        memory, time = fixed_costs(self.context, self.coarsened)
        return SearchProblem(
            self.context, self.coarsened, self.patterns, costs, edges, memory, time
        )


def costed(
    patterns: Patterns,
    hardware: Hardware,
    mesh: Mesh,
    options: Options,
    progress: Progress,
    micro_batches: int = 1,
) -> Costed:
    """Computes the costs of every group's computation on the mesh; as `assemble`."""
    coarsened = patterns.coarsened
    search_mesh = SearchMesh.build(mesh, options.max_configurations, units=options.shard_units)
    context = context_of(patterns, hardware, search_mesh, options, micro_batches)
    group_patterns = [patterns.pattern(group) for group in coarsened.groups]
    kinds = [group_kind(context, pattern) for pattern in group_patterns]
    terms: dict[Hashable, GroupTerms] = {}
    for position, (kind, pattern) in enumerate(zip(kinds, group_patterns, strict=True)):
        if kind not in terms:
            go_on(progress, "costs", 0.5 * position / max(len(group_patterns), 1))
            terms[kind] = GroupTerms(group_work(context, pattern))
    return Costed(context, coarsened, group_patterns, terms, kinds)


def context_of(
    patterns: Patterns,
    hardware: Hardware,
    mesh: SearchMesh,
    options: Options,
    micro_batches: int,
) -> CostContext:
    """Returns the context that all costs of a query share. Raises `BadInput` for pins that match
    nothing."""
    coarsened = patterns.coarsened
    of_group = patterns.once("segments", lambda: segments(coarsened))
    early_stop = options.rerun_of_segments == NEEDED

    def rerun() -> Rerun:
        key = ("rerun", early_stop, blocks_of_groups(coarsened))
        return patterns.of_wiring.once(
            key, lambda: rerun_of(coarsened, patterns, of_group, early_stop=early_stop)
        )

    return CostContext(
        coarsened.graph,
        hardware,
        mesh,
        options,
        patterns,
        Reschedulers(hardware, mesh).of,
        Pins(options.pins, coarsened),
        of_group,
        patterns.once("families", lambda: Families(patterns)),
        micro_batches,
        patterns.once(("rerun", early_stop), rerun),
    )


def group_kind(context: CostContext, pattern: GroupPattern) -> Hashable:
    """Returns what determines a group's configurations: pattern, pins, whether others recompute
    with it, and where times are measured, how its operands lie in memory.
    """
    index = pattern.group.index
    shared = context.shares_segment(index)
    measured = context.hardware.operator_times.known
    operands = context.families.operands(pattern.group) if measured else ()
    rerun = context.rerun
    again = tuple((rerun.computes(m), rerun.takes_part(m)) for m in pattern.members)
    return pattern.key, context.pins.all_of(pattern.group), shared, operands, again


def all_edges(
    context: CostContext,
    patterns: list[GroupPattern],
    costs: list[GroupCosts],
    progress: Progress,
) -> list[SearchEdge]:
    """Merges equal crossings between the same groups into one edge; layers share tables."""
    kinds: dict[Hashable, CrossingKind] = {}
    of_group = [id(cost) for cost in costs]
    of_crossing: dict[Crossing, CrossingKind] = {}
    for crossing in context.patterns.crossings:
        source, target = patterns[crossing.source], patterns[crossing.target]
        out = source.exits.index(crossing.tensor)
        into = target.entries.index(crossing.tensor)
        same_segment = context.segments[crossing.source] == context.segments[crossing.target]
        key = (of_group[crossing.source], out, of_group[crossing.target], into, same_segment)
        if key not in kinds:
            kinds[key] = crossing_kind(context, crossing, patterns, costs)
        of_crossing[crossing] = kinds[key]
    for kind in kinds.values():
        kind.register()
    merged: dict[tuple[int, int, Hashable], list[str]] = {}
    first: dict[Hashable, CrossingKind] = {}
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
            go_on(progress, "costs", 1.0)
            tables[wanted] = first[content].table(len(names))
        edges.append(SearchEdge(source_index, target_index, tuple(names), tables[wanted]))
    return edges


def fixed_costs(context: CostContext, coarsened: Coarsened) -> tuple[float, float]:
    """Returns memory and time of constants and buffers, which every device computes in full."""
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
    return memory, time * context.micro_batches


def fixed_host_s(context: CostContext, coarsened: Coarsened) -> float:
    """Returns the host's time of the constants that every device computes."""
    constants = len(coarsened.constants) * context.micro_batches
    return constants * Launching.of(context).operator_s


def _leaves(tensor: str, coarsened: Coarsened) -> bool:
    """Returns whether a group reads this constant; those that only constants read are freed at
    once."""
    return any(op.name in coarsened.group_of for op in coarsened.graph.consumers[tensor])
