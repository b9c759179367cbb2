"""A plan as the executor reads it: each operator's split, layouts, and what is moved for it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace

from msgspec import UNSET, UnsetType

from shardwise.documents import Plan
from shardwise.documents.common import Step
from shardwise.documents.plan import (
    COLLECTIVE_SUM,
    Load,
    Move,
    PlannedCluster,
    PlannedGroup,
    PlannedOperator,
)
from shardwise.errors import BadInput
from shardwise.execute.block_mesh import Proportions, is_alike
from shardwise.execute.collectives import Change, parse_layout, parse_path
from shardwise.execute.precision import planned_graph
from shardwise.execute.rank_mesh import RankMesh
from shardwise.graph.graph import Graph, Operator
from shardwise.graph.semantics import OperatorSemantics
from shardwise.sharding.layout import REPLICATE, describe
from shardwise.sharding.on_parameters import operators_on_parameters
from shardwise.sharding.operator_layouts import (
    LayoutPair,
    OperatorLayouts,
    Split,
    axes_of_terms,
    operator_layouts,
    whole_layouts,
)
from shardwise.sharding.pattern import differentiated
from shardwise.sharding.routing import with_routing
from shardwise.sharding.zigzag import constant_operators, pieces_of, with_zigzag
from shardwise.tdl.registry import analyse

CONSTANT = -1
"""Replaces a group: every rank fully computes what depends on no data and no parameter."""


@dataclass(frozen=True)
class Placed:
    """One operator of the graph as the plan places it; `moves` and `loads` are the plan's.

    `mesh` is that of the ranks that have a share of it. `segment` is the segment of recomputation
    with which it runs again in backward, or None.
    """

    operator: Operator
    semantics: OperatorSemantics
    split: Split
    layouts: OperatorLayouts
    group: int
    moves: Mapping[int, Move]
    loads: Mapping[str, Load]
    mesh: RankMesh
    segment: int | None = None


@dataclass(frozen=True)
class PlacedGroup:
    """What a group chooses apart from its split; axes are numbers.

    `mesh` is that of the ranks that have a share. `weights` say which elements of a parameter each
    block owns, None for equal shards.
    """

    zero: int
    zero_axes: tuple[int, ...]
    segment: int | None
    mesh: RankMesh
    weights: tuple[int, ...] | None = None


@dataclass(frozen=True)
class CrossingPath:
    """A crossing between two groups; `recompute` is what backward runs again, if anything."""

    kept: str
    forward: tuple[Change, ...]
    backward: tuple[Change, ...]
    recompute: tuple[Change, ...]


PlacedLayout = tuple[RankMesh, tuple[int, ...]]
"""A layout with the mesh that has its shares."""


class Placement:
    """A plan on a graph, for one rank; `captured` is that graph, `graph` has the plan's dtypes.

    Raises `BadInput` if the plan does not fit the graph or is inconsistent.
    """

    def __init__(
        self, graph: Graph, plan: Plan, mesh: RankMesh, only: Collection[str] | None = None
    ) -> None:
        """`only` names the operators that run here, those of a stage; by default all do."""
        self.captured = graph
        planned = planned_graph(graph, plan)
        routing = with_routing(
            planned, {op.name: analyse(op, planned.tensors) for op in planned.operators}
        )
        self.graph, self._semantics, self.routes = (
            routing.graph,
            routing.semantics,
            routing.routes,
        )
        self.mesh = mesh
        self.proportions = Proportions(mesh, plan.cluster)
        owned = _weights(plan.cluster)
        self.groups: list[PlacedGroup] = []
        self._terms: list[frozenset[int]] = []
        self._on_parameters = operators_on_parameters(graph, lambda op: self._semantics[op.name])
        entries: dict[str, tuple[int, PlannedOperator]] = {}
        numbers: dict[str, int] = {}
        for number, group in enumerate(plan.groups):
            numbers[group.name] = number
            segment = group.segment if group.recompute else None
            self.groups.append(
                PlacedGroup(
                    group.zero,
                    mesh.numbers(group.zero_axes),
                    segment,
                    self.proportions.at(group.proportion),
                    _weights_of(group, owned),
                )
            )
            self._terms.append(axes_of_terms(entry.variables for entry in group.operators))
            for entry in group.operators:
                entries[entry.name] = (number, entry)
        everything = [self._placed(op, entries.get(op.name)) for op in graph.operators]
        # Of all operators, also where only some run here: stages have like meshes.
        self.pieces, self.positions = self._zigzag(everything)
        everything = [self._in_order(placed) for placed in everything]
        self._everything = everything
        self.operators = everything if only is None else _needed(everything, only)
        self._readers = self.operators
        self.makes = frozenset(o for p in self.operators for o in p.operator.outputs)
        self.made_in = {o: p.group for p in everything for o in p.operator.outputs}
        self.output_layouts = {
            name: pair
            for p in everything
            for name, pair in zip(p.operator.outputs, p.layouts.outputs, strict=True)
        }
        self._differentiated = differentiated(graph)
        self._edges = {
            (name, numbers[edge.source], numbers[edge.target]): edge
            for edge in plan.edges
            for name in edge.tensors
        }

    def _placed(self, op: Operator, planned: tuple[int, PlannedOperator] | None) -> Placed:
        axes = len(self.mesh.names)
        semantics = self._semantics[op.name]
        if planned is None:
            nothing: Split = (None,) * axes
            whole = whole_layouts(op, axes)
            return Placed(op, semantics, nothing, whole, CONSTANT, {}, {}, self.mesh)
        group, entry = planned
        split = _split_of(entry, semantics)
        if entry.kind != op.kind or len(split) != axes:
            raise BadInput(
                f"operator {op.name} does not say how it is executed on {axes} axes",
                field="groups",
                expected="a plan of this version of shardwise, made for this graph",
            )
        terms = self._terms[group] if self._on_parameters.keys() & op.outputs else ()
        layouts = operator_layouts(semantics, split, terms)
        _check_layouts(op, entry, layouts)
        return Placed(
            op,
            semantics,
            split,
            layouts,
            group,
            {move.input: move for move in entry.moves},
            {load.tensor: load for load in entry.loads},
            self.groups[group].mesh,
            None if entry.runs_again is False else self.groups[group].segment,
        )

    def _zigzag(self, everything: Sequence[Placed]) -> tuple[int, Mapping[str, int]]:
        """Returns in how many zigzag pieces sequences lie, for the most shares of any attention,
        and along which dimension of each tensor; 0 pieces where shares are as they are."""
        zigzag = with_zigzag(self.graph, self._semantics, constant_operators(self.graph))
        parts, extent = 1, 0
        for placed in everything:
            merging = zigzag.semantics[placed.operator.name].merging
            if merging is None or not merging.balanced:
                continue
            axes = [a for a, v in enumerate(placed.split) if v in (merging.rows, merging.ring)]
            axes = [a for a in axes if placed.split[a] is not None]
            parts = max(parts, placed.mesh.parts(axes))
            extent = placed.semantics.variables[merging.ring or 0].extent
        pieces = 0 if self.proportions.is_mixed else pieces_of(extent, parts)
        return pieces, zigzag.dims if pieces else {}

    def _in_order(self, placed: Placed) -> Placed:
        """Returns an operator that knows in which order positions lie."""
        merging = placed.semantics.merging
        if not self.pieces or merging is None or merging.ring is None:
            return placed
        merging = replace(merging, pieces=self.pieces)
        return replace(placed, semantics=replace(placed.semantics, merging=merging))

    def part(self, only: Collection[str]) -> Placement:
        """Returns the same placement with some of its operators, in which inputs arrive alike."""
        part = copy(self)
        part.operators = _needed(self._everything, only)
        part.makes = frozenset(o for p in part.operators for o in p.operator.outputs)
        return part

    def arrives(self, name: str) -> tuple[int, ...]:
        """Returns the layout in which an input is loaded."""
        for placed in self._readers:
            if name in placed.loads:
                return parse_layout(placed.loads[name].arrives)
        return (REPLICATE,) * len(self.mesh.names)

    def crossing_path(self, name: str, source: int, target: int, into: LayoutPair) -> CrossingPath:
        """Returns how a tensor goes from the group that made it to `into` in another group."""
        edge = self._edges.get((name, source, target))
        if edge is None:
            raise BadInput(f"no edge for {name}", field="edges", expected="one per crossing tensor")
        here = self.output_layouts[name]
        if not edge.backward and into.gradient != here.gradient and name in self._differentiated:
            raise BadInput(
                f"the gradient of {name} has no path back", field="edges", expected="backward steps"
            )
        at, to = self.groups[source].mesh, self.groups[target].mesh
        again = (to, into.forward) if edge.kept == "after" else (at, here.forward)
        back: tuple[Change, ...] = ()
        if edge.backward:
            back = self.path((to, into.gradient), edge.backward, (at, here.gradient), name)
        return CrossingPath(
            edge.kept,
            self.path((at, here.forward), edge.forward, (to, into.forward), name),
            back,
            tuple(parse_path(self.proportions, *again, edge.again)),
        )

    def path(
        self, start: PlacedLayout, steps: Sequence[Step], end: PlacedLayout, name: str
    ) -> tuple[Change, ...]:
        """Parses a sequence of the plan's steps; raises `BadInput` if it does not end in `end`."""
        changes = tuple(parse_path(self.proportions, *start, steps))
        (mesh, reached), (wanted, layout) = start, end
        for change in changes:
            mesh, reached = change.mesh or mesh, change.after
        if reached != layout or not is_alike(mesh, wanted, layout):
            raise BadInput(
                f"the steps of {name} lead to {reached}, but its reader needs {layout}",
                field="edges",
                expected="steps from layout to layout, as the search found them",
            )
        return changes


def _needed(everything: Sequence[Placed], only: Collection[str]) -> list[Placed]:
    """Returns the operators of these names, and the constants that they are made of."""
    wanted: set[str] = set()
    needed = []
    for placed in reversed(everything):
        op = placed.operator
        constant = placed.group == CONSTANT and not wanted.isdisjoint(op.outputs)
        if constant or op.name in only:
            wanted.update(op.inputs)
            needed.append(placed)
    return needed[::-1]


def _weights(cluster: PlannedCluster | UnsetType) -> dict[str, tuple[int, ...]]:
    """Returns the weights of what blocks own, by the name of the gradient sum."""
    if cluster is UNSET:
        return {}
    blocks = range(len(cluster.blocks))
    servers = {name: tuple(int(b == at) for b in blocks) for name, at in cluster.servers.items()}
    return servers | {state.origin: tuple(state.weights) for state in cluster.states}


def _weights_of(
    group: PlannedGroup, owned: Mapping[str, tuple[int, ...]]
) -> tuple[int, ...] | None:
    if group.gradient_sum is UNSET or group.gradient_sum == COLLECTIVE_SUM:
        return None
    if group.gradient_sum not in owned:
        raise BadInput(
            f"group {group.name} sums gradients by {group.gradient_sum!r}",
            field="groups.gradient_sum",
            expected=", ".join([COLLECTIVE_SUM, *owned]),
        )
    return owned[group.gradient_sum]


def _split_of(entry: PlannedOperator, semantics: OperatorSemantics) -> Split:
    """Returns the variable that each axis splits, by its position among those of an operator here.

    A plan has positions among the variables of the whole batch. An operator on a micro-batch of one
    sample lacks that of the batch: then names tell, where each is there once.
    """
    names = [variable.name for variable in semantics.variables]
    pairs = list(zip(entry.variables, entry.split, strict=False))
    if all(v is None or (v < len(names) and names[v] == name) for v, name in pairs):
        return tuple(entry.variables)
    split = []
    for v, name in pairs:
        if v is not None and names.count(str(name)) != 1:
            raise BadInput(
                f"operator {entry.name} is split by {name!r}, which is not one of "
                f"{', '.join(names) or 'no variables'} here",
                field="groups.operators.split",
                expected="fewer micro-batches, so that each has several samples",
            )
        split.append(None if v is None else names.index(str(name)))
    return tuple(split)


def _check_layouts(op: Operator, entry: PlannedOperator, layouts: OperatorLayouts) -> None:
    """Raises `BadInput` if the plan gives a tensor a layout other than its split does."""
    for field, names, pairs, planned in (
        ("inputs", op.inputs, layouts.inputs, entry.inputs),
        ("outputs", op.outputs, layouts.outputs, entry.outputs),
    ):
        # An operator may read one tensor twice; the plan names it once, in the last layout.
        given = {name: describe(pair.forward, ()) for name, pair in zip(names, pairs, strict=True)}
        if planned != given:
            raise BadInput(
                f"operator {op.name} has the layouts {planned}, but its split gives {given}",
                field=f"groups.operators.{field}",
                expected="a plan of this version of shardwise, made for this graph",
            )
