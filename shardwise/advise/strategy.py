"""One strategy spelled out: the members of `shardwise.plan/1` that say how to execute it.

Per group its split, ZeRO stage and recomputation; per operator the layouts of its inputs and
outputs, the inputs of the graph that it loads and the tensors that it reads in another layout than
they have in its group; per crossing the sequence of collectives, forward, backward, and for copies
that backward rebuilds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from msgspec import UNSET
from msgspec.structs import asdict as members

from shardwise.cost.assemble import SearchProblem
from shardwise.cost.crossings import AFTER, ALTERNATIVES, BEFORE, REBUILT
from shardwise.cost.data_loading import arriving
from shardwise.cost.group_costs import GroupCosts
from shardwise.cost.pins import forbidden_end
from shardwise.cost.reschedule import Step
from shardwise.cost.shares import Shares
from shardwise.cost.terms import operator_costs
from shardwise.documents import common as documents
from shardwise.documents.plan import (
    Choice,
    Load,
    Move,
    NextBest,
    PlannedEdge,
    PlannedGroup,
    PlannedOperator,
)
from shardwise.graph import DTYPE_BYTES
from shardwise.sharding.layout import describe
from shardwise.sharding.operator_layouts import (
    Layout,
    LayoutPair,
    operator_layouts,
    split_of,
)
from shardwise.sharding.pattern import GroupPattern

Steps = list[documents.Step]


class Strategy:
    """The choices of one strategy: a configuration per group, an alternative per edge."""

    def __init__(
        self, problem: SearchProblem, choices: Sequence[int], edge_choices: Sequence[int]
    ) -> None:
        self._problem = problem
        self._choices = [int(choice) for choice in choices]
        self._edge_choices = [int(choice) for choice in edge_choices]
        self._axes = tuple(axis.name for axis in problem.context.mesh.axes)

    def groups(self, next_best: Sequence[NextBest | None]) -> list[PlannedGroup]:
        """Returns every group with its operators and, as given, its next best choice."""
        return [self._group(index, other) for index, other in enumerate(next_best)]

    def edges(self) -> list[PlannedEdge]:
        """Returns every kind of crossing between two groups."""
        return [self.edge(e) for e in range(len(self._problem.edges))]

    def _group(self, index: int, next_best: NextBest | None) -> PlannedGroup:
        pattern, cost = self._problem.patterns[index], self._problem.costs[index]
        choice = self._choices[index]
        return PlannedGroup(
            name=pattern.group.name,
            choice=choice,
            segment=self._problem.context.segments[index],
            **members(choice_of(self._problem, index, choice)),
            parameter_bytes=float(cost.parameter_bytes[choice]),
            activation_bytes=float(cost.activation_bytes[choice]),
            compute_s=float(cost.compute_s[choice]),
            compute_shares=Shares.of_columns(cost.compute_by_source_s[choice]).document(),
            communication_s=float(cost.communication_s[choice]),
            operators=self._operators(pattern, cost, choice),
            next_best=next_best,
        )

    def _operators(
        self, pattern: GroupPattern, cost: GroupCosts, choice: int
    ) -> list[PlannedOperator]:
        tensors = self._problem.context.graph.tensors
        row = cost.assignment[choice].tolist()
        pins = self._problem.context.pins
        forbidden = forbidden_end(pins, pattern.group)
        exempt = pins.of(pattern.group, "precision")
        costs = operator_costs(self._problem.context, pattern, cost, choice)
        recomputed, rerun = bool(cost.recompute[choice]), self._problem.context.rerun
        there: dict[str, LayoutPair] = {}
        planned = []
        for member, of_member in zip(pattern.members, costs, strict=True):
            op, semantics = member.operator, member.semantics
            split = split_of(member.variables, row)
            layouts = operator_layouts(semantics, split)
            loads, moves = [], []
            for port, name in enumerate(op.inputs):
                wanted = layouts.inputs[port]
                first = name not in there
                source = there.setdefault(name, wanted)
                if tensors[name].role == "input":
                    if first:
                        loads.append(self._load(name, wanted.forward, forbidden))
                elif self._moves(pattern, name, source, wanted):
                    moves.append(self._move(port, name, source, wanted, forbidden))
            there.update(zip(op.outputs, layouts.outputs, strict=True))
            planned.append(
                PlannedOperator(
                    name=op.name,
                    kind=op.kind,
                    split=[None if v is None else semantics.variables[v].name for v in split],
                    variables=list(split),
                    inputs=_layouts(op.inputs, layouts.inputs),
                    outputs=_layouts(op.outputs, layouts.outputs),
                    loads=loads,
                    moves=moves,
                    precision="captured" if any(rule.binds(op) for rule in exempt) else UNSET,
                    runs_again=False if recomputed and not rerun.takes_part(member) else UNSET,
                    **asdict(of_member),
                )
            )
        return planned

    def _moves(
        self, pattern: GroupPattern, name: str, source: LayoutPair, wanted: LayoutPair
    ) -> bool:
        """Returns whether a member reads an activation in another layout than it has
        (`group_work.py`)."""
        context = self._problem.context
        producer = context.graph.producer.get(name)
        if producer is None or producer.name not in self._problem.coarsened.group_of:
            return False
        agrees = source.forward == wanted.forward and (
            source.gradient == wanted.gradient or not context.patterns.carries_gradient(name)
        )
        return not agrees

    def _load(self, name: str, wanted: Layout, forbidden: str | None) -> Load:
        context = self._problem.context
        here = tuple(arriving(context.graph.tensors[name], context.mesh).tolist())
        return Load(
            tensor=name,
            arrives=describe(here, ()),
            steps=self._steps(name, here, wanted, forbidden),
        )

    def _move(
        self,
        port: int,
        name: str,
        source: LayoutPair,
        wanted: LayoutPair,
        forbidden: str | None,
    ) -> Move:
        gradient = self._problem.context.patterns.carries_gradient(name)
        back = self._steps(name, wanted.gradient, source.gradient, forbidden) if gradient else []
        return Move(
            input=port,
            tensor=name,
            forward=self._steps(name, source.forward, wanted.forward, forbidden),
            backward=back,
        )

    def edge(self, e: int) -> PlannedEdge:
        """Returns one kind of crossing, by its position among the problem's edges."""
        problem, edge = self._problem, self._problem.edges[e]
        name = edge.tensors[0]
        at_source, at_target = self._choices[edge.source], self._choices[edge.target]
        row, column = edge.table.cell(at_source, at_target)
        alternative = self._edge_choices[e]
        kept = int(edge.table.kept[row, column, alternative])
        source, target = problem.patterns[edge.source], problem.patterns[edge.target]
        exit_number = source.exits.index(name)
        out = problem.costs[edge.source].exits[exit_number]
        into = problem.costs[edge.target].entries[target.entries.index(name)]
        here, there = _row(out.forward[at_source]), _row(into.forward[at_target])
        forbidden = forbidden_end(problem.context.pins, source.group)
        forward = self._steps(name, here, there, forbidden)
        rebuild: Steps = []
        if kept in (BEFORE, REBUILT):
            rebuild = forward
        elif (
            kept == AFTER
            and source.exit_deferred[exit_number]
            and not problem.costs[edge.source].recompute[at_source]
        ):
            # Both sides need the tensor, and the source's copy is not kept.
            rebuild = self._steps(name, there, here, forbidden)
        backward = problem.context.patterns.carries_gradient(name)
        back = (_row(into.gradient[at_target]), _row(out.gradient[at_source]))
        return PlannedEdge(
            source=source.group.name,
            target=target.group.name,
            tensors=list(edge.tensors),
            layout_at_source=describe(here, ()),
            layout_at_target=describe(there, ()),
            kept=ALTERNATIVES[kept],
            memory_bytes=float(edge.table.memory_bytes[row, column, alternative]),
            time_s=float(edge.table.time_s[row, column, alternative]),
            forward=forward,
            backward=self._steps(name, *back, forbidden) if backward else [],
            again=rebuild,
        )

    def _steps(self, name: str, a: Layout, b: Layout, forbidden: str | None) -> Steps:
        """Returns the sequence that the search priced between two layouts of a tensor."""
        if a == b:
            return []
        context = self._problem.context
        tensor = context.graph.tensors[name]
        paths = context.rescheduler(tensor.shape, DTYPE_BYTES[tensor.dtype], forbidden)
        return [self._step(step) for step in paths.path_between(a, b)]

    def _step(self, step: Step) -> documents.Step:
        return documents.Step(
            operation=step.operation,
            axes=[axis for a, axis in enumerate(self._axes) if step.axes >> a & 1],
            size_bytes=step.size_bytes,
            time_s=step.time_s,
            result=describe(step.result, ()),
        )


def choice_of(problem: SearchProblem, group: int, choice: int) -> Choice:
    """Returns what a group chooses with its configuration `choice`."""
    axes = problem.context.mesh.axes
    cost, variables = problem.costs[group], problem.patterns[group].group.variables
    shared = int(cost.zero_axes[choice])
    return Choice(
        split={
            axis.name: variables[v] if v >= 0 else None
            for axis, v in zip(axes, cost.assignment[choice].tolist(), strict=True)
        },
        zero=int(cost.zero[choice]),
        zero_axes=[axis.name for a, axis in enumerate(axes) if shared >> a & 1],
        recompute=bool(cost.recompute[choice]),
    )


def _layouts(names: Sequence[str], layouts: Sequence[LayoutPair]) -> dict[str, list[str]]:
    return {name: describe(pair.forward, ()) for name, pair in zip(names, layouts, strict=True)}


def _row(layout: Any) -> Layout:
    return tuple(int(state) for state in layout)
