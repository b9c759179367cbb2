"""Stages: the fastest way to run a range of units on some devices within a memory.

A stage of the units i to j - 1 has the groups of these units and the crossings into them. It keeps
k micro-batches for backward, so that of Eq. 1 and 2 of TensorOpt

    memory = parameters, gradients and states + k (kept activations and copies)
                                              + k (the share of each tensor that comes in)
    time   = that of its groups and crossings, all micro-batches of a step together

Two stages must agree on the layouts of the tensors between them. These come from a **guide**: a
strategy of the whole model on the devices of one stage. A group whose tensor may leave its stage
takes a configuration that makes it in the guide's layout, and a stage receives tensors in the
guide's layouts. Otherwise stages are free and independent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from shardwise import _core
from shardwise.cost.assemble import SearchEdge, SearchProblem
from shardwise.cost.group_costs import GroupCosts
from shardwise.graph.graph import DTYPE_BYTES
from shardwise.search.elimination import occurring, places
from shardwise.search.pipelines.hull import hull
from shardwise.search.pipelines.units import Units
from shardwise.search.solver_errors import solver_errors
from shardwise.sharding.layout import REPLICATE, Floats, encode

EPSILON = 0.01
"""The error (epsilon) of one stage's answer."""


@dataclass(frozen=True)
class Stage:
    """A stage's strategy: bytes and seconds of a step as sums.

    `choices` are the configurations of its groups, in the order of `Units.groups_of`,
    `edge_choices` the alternatives of the crossings into them, in that of `edges_of`.
    """

    memory_bytes: float
    time_s: float
    choices: tuple[int, ...]
    edge_choices: tuple[int, ...]


@dataclass(frozen=True)
class _StagePart:
    """The solver's problem of a stage; per group the allowed configurations, as rows of the whole
    problem, and its number in this one."""

    problem: _core.Problem
    groups: list[int]
    rows: dict[int, NDArray[np.int64]]
    number: dict[int, int]


@dataclass
class StageProblems:
    """The stages of a model on the mesh of one stage, with a guide's layouts.

    `guide` is a configuration per group, shape (groups,). Equal stages, as of equal layers, are
    solved once.
    """

    problem: SearchProblem
    units: Units
    guide: NDArray[np.int64]
    narrow: Mapping[int, NDArray[np.bool_]] | None = None
    """Allowed configurations per cost array, by its id; all if missing."""
    solved: int = 0
    """Number of stages solved."""
    _known: dict[Hashable, Stage | None] = field(default_factory=dict, init=False)
    _incoming: dict[int, float] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._edges_into: dict[int, list[int]] = defaultdict(list)
        self._leaves: dict[int, int] = {}
        """The last unit that reads a group's results, by group."""
        of_group = self.units.of_group
        for number, edge in enumerate(self.problem.edges):
            self._edges_into[edge.target].append(number)
            unit = of_group[edge.target]
            if unit > of_group[edge.source]:
                self._leaves[edge.source] = max(self._leaves.get(edge.source, 0), unit)
        self._allowed: dict[tuple[int, int], NDArray[np.int64]] = {}

    def edges_of(self, groups: Sequence[int]) -> list[int]:
        """Returns the numbers of the crossings into some groups."""
        return [edge for group in groups for edge in self._edges_into[group]]

    def incoming_bytes(self, first: int) -> float:
        """Returns what one micro-batch brings over the cut before a unit, in the guide's
        layouts."""
        if first not in self._incoming:
            self._incoming[first] = incoming_bytes(self.problem, self.units, self.guide, first)
        return self._incoming[first]

    def fastest(self, first: int, last: int, kept: int, limit_bytes: float) -> Stage | None:
        """Returns the fastest strategy of units `first` to `last` - 1 within a memory, keeping
        `kept` micro-batches, or None.

        The memory is that of the sums, including what every device holds.
        """
        left = self.left_bytes(first, kept, limit_bytes)
        if left <= 0:
            return None
        key = self.kind(first, last), kept, left
        if key not in self._known:
            self.solved += 1
            self._known[key] = self._solve(first, last, kept, left)
        return self._known[key]

    def left_bytes(self, first: int, kept: int, limit_bytes: float) -> float:
        """Returns the rest of a limit for a stage from unit `first` on, after what every device
        holds and the incoming tensors."""
        incoming = self.incoming_bytes(first) if first else 0.0
        return limit_bytes - self.problem.fixed_memory_bytes - kept * incoming

    def frontier(self, first: int, last: int, kept: int) -> tuple[Floats, Floats, Floats]:
        """Returns the frontier of units `first` to `last` - 1 with `kept` micro-batches: lasting
        bytes, bytes per kept micro-batch and seconds, shape (points,) each."""
        stage = self._part(first, last, kept)
        with solver_errors():
            solution = _core.solve(stage.problem, method="auto", epsilon=EPSILON)
        lasting = np.zeros(len(solution.time_s))
        for group in stage.groups:
            chosen = stage.rows[group][solution.choices[:, stage.number[group]]]
            lasting += self.problem.costs[group].parameter_bytes[chosen]
        return lasting, (solution.memory_bytes - lasting) / kept, solution.time_s

    def of_units(self, kept: int, epsilon: float) -> dict[int, set[int]]:
        """Returns the configurations on the hulls of single units that keep `kept` micro-batches,
        by the id of a group's costs; units that are alike count once."""
        known: set[Hashable] = set()
        used: dict[int, set[int]] = defaultdict(set)
        for unit in range(len(self.units)):
            kind = self.kind(unit, unit + 1)
            if kind in known:
                continue
            known.add(kind)
            part = self._part(unit, unit + 1, kept)
            chosen = np.stack(hull(part.problem, epsilon))
            for group in part.groups:
                rows = part.rows[group][chosen[:, part.number[group]]]
                used[id(self.problem.costs[group])].update(np.unique(rows).tolist())
        return used

    def kind(self, first: int, last: int) -> Hashable:
        """Returns the content of the problem of units `first` to `last` - 1, without names."""
        groups, edges, leaving = self._inside(first, last)
        costs, all_edges = self.problem.costs, self.problem.edges
        place = {group: number for number, group in enumerate(groups)}
        of_groups = tuple(
            (id(costs[g]), int(self.guide[g]) if g in leaving else -1) for g in groups
        )
        of_edges = tuple(
            (
                place.get(edge.source, -1 - int(edge.table.rows[self.guide[edge.source]])),
                place[edge.target],
                id(edge.table),
            )
            for edge in (all_edges[e] for e in edges)
        )
        return of_groups, of_edges

    def _inside(self, first: int, last: int) -> tuple[list[int], list[int], set[int]]:
        """Returns the groups of some units, the crossings into them, and the groups whose tensors
        leave."""
        groups = self.units.groups_of(first, last)
        return groups, self.edges_of(groups), {g for g in groups if self._leaves.get(g, 0) >= last}

    def _solve(self, first: int, last: int, kept: int, left: float) -> Stage | None:
        stage = self._part(first, last, kept)
        with solver_errors():
            solution = _core.solve(
                stage.problem, method="auto", epsilon=EPSILON, memory_target_bytes=left
            )
        fitting = np.flatnonzero(solution.memory_bytes <= left)
        if not len(fitting):
            return None
        point = int(fitting[-1])
        chosen = solution.choices[point]
        return Stage(
            float(solution.memory_bytes[point]),
            float(solution.time_s[point]),
            tuple(int(stage.rows[g][chosen[stage.number[g]]]) for g in stage.groups),
            tuple(int(choice) for choice in solution.edge_choices[point]),
        )

    def _part(self, first: int, last: int, kept: int) -> _StagePart:
        groups, edges, leaving = self._inside(first, last)
        part, rows = _core.Problem(), dict[int, NDArray[np.int64]]()
        number: dict[int, int] = {}
        ids: dict[tuple[int, int], int] = {}
        for group in groups:
            cost = self.problem.costs[group]
            guided = int(self.guide[group]) if group in leaving else -1
            rows[group] = self._rows(group, guided)
            key = (id(cost), guided)
            if key not in ids:
                memory = cost.parameter_bytes + kept * cost.activation_bytes
                ids[key] = part.add_costs(memory[rows[group]], cost.time_s[rows[group]])
            number[group] = part.add_operator(f"{group}", ids[key])
        for edge in (self.problem.edges[e] for e in edges):
            if edge.source not in number:
                rows[edge.source] = self.guide[edge.source][None]
                nothing = part.add_costs(np.zeros(1), np.zeros(1))
                number[edge.source] = part.add_operator(f"{edge.source}", nothing)
        self._add_edges(part, [self.problem.edges[e] for e in edges], number, rows, kept)
        return _StagePart(part, groups, rows, number)

    def _add_edges(
        self,
        part: _core.Problem,
        edges: Sequence[SearchEdge],
        number: dict[int, int],
        rows: dict[int, NDArray[np.int64]],
        kept: int,
    ) -> None:
        """Adds crossings, with the cells of their tables that the groups' rows use."""
        used = occurring(edges, rows)
        tables: dict[int, int] = {}
        for edge in edges:
            table = edge.table
            if id(table) not in tables:
                cells = np.ix_(*used[id(table)])
                tables[id(table)] = part.add_table(
                    kept * table.memory_bytes[cells], table.time_s[cells], table.count[cells]
                )
            row_of, column_of = places(used[id(table)])
            part.add_edge(
                number[edge.source],
                number[edge.target],
                tables[id(table)],
                row_of[table.rows[rows[edge.source]]],
                column_of[table.columns[rows[edge.target]]],
            )

    def _rows(self, group: int, guided: int) -> NDArray[np.int64]:
        """Returns a group's configurations: those not beaten by sums, and if its tensors leave the
        stage those that make them in the guide's layout."""
        cost = self.problem.costs[group]
        key = (id(cost), guided)
        if key not in self._allowed:
            allowed = cost.summed.copy()
            if self.narrow is not None:
                allowed &= self.narrow[id(cost)]
                allowed[self.guide[group]] = True
            if guided >= 0:
                for port in cost.exits:
                    for layouts in (port.forward, port.gradient):
                        codes = encode(layouts)
                        allowed &= codes == codes[guided]
                allowed[guided] = True
            self._allowed[key] = np.flatnonzero(allowed)
        return self._allowed[key]


def incoming_bytes(
    problem: SearchProblem, units: Units, choices: NDArray[np.integer], cut: int
) -> float:
    """Returns a device's shares of the tensors that one micro-batch brings over the cut before a
    unit, as a strategy (groups,) makes them."""
    return sum(share for share, _ in incoming_shares(problem, units, choices, cut))


def incoming_shares(
    problem: SearchProblem, units: Units, choices: NDArray[np.integer], cut: int
) -> list[tuple[float, tuple[int, ...]]]:
    """Returns a device's share in bytes of each of these tensors, and the axes along which devices
    have the same."""
    context, shares = problem.context, []
    for tensor, source in units.crossing(cut).items():
        port = problem.patterns[source].exits.index(tensor)
        layouts = problem.costs[source].exits[port].forward[choices[source]][None]
        whole = context.graph.tensors[tensor]
        elements = context.mesh.local_elements(whole.extents, layouts)
        same = tuple(np.flatnonzero(layouts[0] == REPLICATE).tolist())
        shares.append((float(elements[0]) * DTYPE_BYTES[whole.dtype], same))
    return shares


def narrowed(
    problem: SearchProblem,
    guides: Sequence[NDArray[np.int64]],
    used: Mapping[int, set[int]] | None = None,
) -> dict[int, NDArray[np.bool_]]:
    """Returns the configurations whose layouts a guide has in some group of the same costs, or
    one of those `used`, by the id of the costs, with any ZeRO stage and with or without
    recomputation."""
    chosen: dict[int, set[int]] = defaultdict(set)
    of: dict[int, GroupCosts] = {}
    for group, cost in enumerate(problem.costs):
        of[id(cost)] = cost
        chosen[id(cost)].update(int(guide[group]) for guide in guides)
    for key, rows in (used or {}).items():
        chosen[key] |= rows
    return {key: _alike(cost, sorted(chosen[key])) for key, cost in of.items()}


def _alike(cost: GroupCosts, rows: Sequence[int]) -> NDArray[np.bool_]:
    """Returns which configurations have the layouts of some of these rows."""
    ports = [layouts for p in (*cost.entries, *cost.exits) for layouts in (p.forward, p.gradient)]
    if not ports:
        return np.ones(len(cost.time_s), dtype=bool)
    codes = np.stack([encode(layouts) for layouts in ports], axis=1)
    _, number = np.unique(codes, axis=0, return_inverse=True)
    return np.isin(number, number[list(rows)])


def layouts_of(problem: SearchProblem, units: Units, guide: NDArray[np.int64]) -> Hashable:
    """Returns the layouts that a guide gives to the tensors that may cross a cut."""
    of: dict[int, Hashable] = {}
    for edge in problem.edges:
        if units.of_group[edge.source] < units.of_group[edge.target]:
            cost, row = problem.costs[edge.source], guide[edge.source]
            of[edge.source] = tuple(
                (port.forward[row].tobytes(), port.gradient[row].tobytes()) for port in cost.exits
            )
    return tuple(sorted(of.items()))
