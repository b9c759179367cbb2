"""A plan as the executor reads it: per operator its split, layouts, and what is moved for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardwise.advise.layout import REPLICATE
from shardwise.advise.operator_layouts import (
    LayoutPair,
    OperatorLayouts,
    Split,
    operator_layouts,
    whole_layouts,
)
from shardwise.advise.pattern import differentiated
from shardwise.errors import BadInput
from shardwise.execute.collectives import Change, parse_layout, parse_path
from shardwise.execute.precision import planned_graph
from shardwise.execute.rank_mesh import RankMesh
from shardwise.graph.graph import Graph, Operator
from shardwise.tdl.registry import analyse
from shardwise.tdl.semantics import OperatorSemantics

CONSTANT = -1
"""Instead of a group: what depends on no data and no parameter is computed in full by all."""


@dataclass(frozen=True)
class Placed:
    """One operator of the graph as the plan places it; `moves` and `loads` as in the plan."""

    operator: Operator
    semantics: OperatorSemantics
    split: Split
    layouts: OperatorLayouts
    group: int
    moves: Mapping[int, Mapping[str, Any]]
    loads: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class PlacedGroup:
    """What a group chooses besides its split; axes are numbers."""

    zero: int
    zero_axes: tuple[int, ...]
    recompute: bool
    segment: int


@dataclass(frozen=True)
class Way:
    """A crossing between two groups; `again` is what is run once more in backward, if anything."""

    kept: str
    forward: tuple[Change, ...]
    backward: tuple[Change, ...]
    again: tuple[Change, ...]


class Placement:
    """A plan on a graph, for one rank; `captured` is that graph, `graph` has the plan's dtypes.

    Raises `BadInput` where the plan does not fit the graph or itself.
    """

    def __init__(self, graph: Graph, plan: Mapping[str, Any], mesh: RankMesh) -> None:
        self.captured = graph
        self.graph = planned_graph(graph, plan)
        self.mesh = mesh
        self.groups: list[PlacedGroup] = []
        entries: dict[str, tuple[int, Mapping[str, Any]]] = {}
        numbers: dict[str, int] = {}
        for number, group in enumerate(plan["groups"]):
            numbers[group["name"]] = number
            self.groups.append(
                PlacedGroup(
                    int(group.get("zero", 0)),
                    mesh.numbers(group.get("zero_axes", ())),
                    bool(group.get("recompute", False)),
                    int(group.get("segment", number)),
                )
            )
            for entry in group["operators"]:
                entries[entry["name"]] = (number, entry)
        self.operators = [self._placed(op, entries.get(op.name)) for op in graph.operators]
        self.made_in = {o: p.group for p in self.operators for o in p.operator.outputs}
        self.made = {
            name: pair
            for p in self.operators
            for name, pair in zip(p.operator.outputs, p.layouts.outputs, strict=True)
        }
        self._differentiated = differentiated(graph)
        self._edges = {
            (name, numbers[edge["source"]], numbers[edge["target"]]): edge
            for edge in plan["edges"]
            for name in edge["tensors"]
        }

    def _placed(self, op: Operator, found: tuple[int, Mapping[str, Any]] | None) -> Placed:
        axes = len(self.mesh.names)
        semantics = analyse(op, self.graph.tensors)
        if found is None:
            nothing: Split = (None,) * axes
            return Placed(op, semantics, nothing, whole_layouts(op, axes), CONSTANT, {}, {})
        group, entry = found
        split = tuple(entry.get("variables", ()))
        if entry["kind"] != op.kind or len(split) != axes or "moves" not in entry:
            raise BadInput(
                f"operator {op.name} does not say how it is executed on {axes} axes",
                field="groups",
                expected="a plan of this version of shardwise, made for this graph",
            )
        return Placed(
            op,
            semantics,
            split,
            operator_layouts(semantics, split),
            group,
            {move["input"]: move for move in entry["moves"]},
            {load["tensor"]: load for load in entry["loads"]},
        )

    def arrives(self, name: str) -> tuple[int, ...]:
        """The layout in which an input is loaded."""
        for placed in self.operators:
            if name in placed.loads:
                return parse_layout(placed.loads[name]["arrives"])
        return (REPLICATE,) * len(self.mesh.names)

    def way(self, name: str, source: int, target: int, into: LayoutPair) -> Way:
        """How a tensor goes from the group that made it to `into` in another group."""
        edge = self._edges.get((name, source, target))
        if edge is None:
            raise BadInput(f"no edge for {name}", field="edges", expected="one per crossing tensor")
        here = self.made[name]
        if not edge["backward"] and into.gradient != here.gradient and name in self._differentiated:
            raise BadInput(
                f"the gradient of {name} has no way back", field="edges", expected="backward steps"
            )
        again_from = into.forward if edge["kept"] == "after" else here.forward
        return Way(
            edge["kept"],
            self.path(here.forward, edge["forward"], into.forward, name),
            self.path(into.gradient, edge["backward"], here.gradient, name)
            if edge["backward"]
            else (),
            tuple(parse_path(self.mesh, again_from, edge.get("again", ()))),
        )

    def path(
        self,
        start: tuple[int, ...],
        steps: Sequence[dict[str, Any]],
        end: tuple[int, ...],
        name: str,
    ) -> tuple[Change, ...]:
        """A sequence of the plan; `BadInput` if it does not lead where it must."""
        changes = tuple(parse_path(self.mesh, start, steps))
        reached = changes[-1].after if changes else start
        if reached != end:
            raise BadInput(
                f"the steps of {name} lead to {reached}, its reader wants {end}",
                field="edges",
                expected="steps from layout to layout, as the search found them",
            )
        return changes
