"""One strategy spelled out: the members of `shardwise.plan/1` that say how to execute it.

Per group its split, ZeRO stage and recomputation; per operator the layouts of its inputs and
outputs, the inputs of the graph that it loads and the tensors that it reads in another layout than
they have in its group; per crossing the sequence of collectives, forward, backward, and for copies
that backward rebuilds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from msgspec import UNSET, UnsetType
from msgspec.structs import asdict as members

from shardwise.cost.assemble import SearchProblem
from shardwise.cost.crossings import AFTER, ALTERNATIVES, BEFORE, REBUILT
from shardwise.cost.data_loading import arriving
from shardwise.cost.gradient_sums import GradientSum
from shardwise.cost.group_costs import GroupCosts
from shardwise.cost.operator_costs import OperatorCost, operator_costs
from shardwise.cost.pins import forbidden_end, pinned_precision
from shardwise.cost.reschedule import Step
from shardwise.cost.shares import Shares
from shardwise.documents import common as documents
from shardwise.documents.plan import (
    COLLECTIVE_SUM,
    Choice,
    Load,
    Move,
    NextBest,
    PlaceCost,
    PlannedEdge,
    PlannedGroup,
    PlannedOperator,
)
from shardwise.graph import DTYPE_BYTES
from shardwise.sharding.coarsen import Member
from shardwise.sharding.layout import describe
from shardwise.sharding.operator_layouts import (
    Layout,
    LayoutPair,
    OperatorLayouts,
    Split,
    axes_of_terms,
    operator_layouts,
    split_of,
)
from shardwise.sharding.pattern import GroupPattern

Steps = list[documents.Step]


@dataclass(frozen=True)
class _Executed:
    """How an operator is executed, without tensor names: its split by variable names and positions,
    its layouts, those of its inputs and outputs in words, and its cost members."""

    names: list[str | None]
    variables: list[int | None]
    layouts: OperatorLayouts
    inputs: list[list[str]]
    outputs: list[list[str]]
    costs: dict[str, Any]

    @classmethod
    def of(
        cls, member: Member, split: Split, terms: Collection[int], cost: OperatorCost
    ) -> _Executed:
        """Returns how a group's operator is executed under a split; `terms` as in
        `operator_layouts`."""
        variables = member.semantics.variables
        layouts = operator_layouts(member.semantics, split, terms)
        return cls(
            [None if v is None else variables[v].name for v in split],
            list(split),
            layouts,
            _words(layouts.inputs),
            _words(layouts.outputs),
            asdict(cost),
        )


class Strategy:
    """The choices of one strategy: a configuration per group, an alternative per edge."""

    def __init__(
        self,
        problem: SearchProblem,
        choices: Sequence[int],
        edge_choices: Sequence[int],
        places: Callable[[int, int], list[PlaceCost]] | None = None,
    ) -> None:
        """`places` returns a group's costs at every place under its choice, on several kinds of
        devices."""
        self._problem = problem
        self._places = places
        self._choices = [int(choice) for choice in choices]
        self._edge_choices = [int(choice) for choice in edge_choices]
        self._axes = tuple(axis.name for axis in problem.context.mesh.axes)
        self._known: dict[tuple[int, int], list[_Executed]] = {}

    def groups(self, next_best: Sequence[NextBest | None]) -> list[PlannedGroup]:
        """Returns every group with its operators and its next best choice, if given."""
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
            places=UNSET if self._places is None else self._places(index, choice),
        )

    def _operators(
        self, pattern: GroupPattern, cost: GroupCosts, choice: int
    ) -> list[PlannedOperator]:
        tensors = self._problem.context.graph.tensors
        pins = self._problem.context.pins
        forbidden = forbidden_end(pins, pattern.group)
        rules = pins.of(pattern.group, "precision")
        executed = self._executed(pattern, cost, choice)
        recomputed, rerun = bool(cost.recompute[choice]), self._problem.context.rerun
        shares = int(cost.proportion[choice])
        there: dict[str, LayoutPair] = {}
        planned = []
        for member, one in zip(pattern.members, executed, strict=True):
            op, layouts = member.operator, one.layouts
            loads, moves = [], []
            for port, name in enumerate(op.inputs):
                wanted = layouts.inputs[port]
                first = name not in there
                source = there.setdefault(name, wanted)
                if tensors[name].role == "input":
                    if first:
                        loads.append(self._load(name, wanted.forward, shares, forbidden))
                elif self._moves(pattern, name, source, wanted):
                    moves.append(self._move(port, name, source, wanted, shares, forbidden))
            there.update(zip(op.outputs, layouts.outputs, strict=True))
            planned.append(
                PlannedOperator(
                    name=op.name,
                    kind=op.kind,
                    split=one.names,
                    variables=one.variables,
                    inputs=dict(zip(op.inputs, one.inputs, strict=True)),
                    outputs=dict(zip(op.outputs, one.outputs, strict=True)),
                    loads=loads,
                    moves=moves,
                    precision=pinned_precision(rules, op) or UNSET,
                    runs_again=False if recomputed and not rerun.takes_part(member) else UNSET,
                    **one.costs,
                )
            )
        return planned

    def _executed(self, pattern: GroupPattern, cost: GroupCosts, choice: int) -> list[_Executed]:
        """Returns how a group's operators are executed, shared by groups that differ only in
        names."""
        key = (id(cost), choice)
        if key not in self._known:
            costs = operator_costs(self._problem.context, pattern, cost, choice)
            row = cost.assignment[choice].tolist()
            splits = [split_of(member.variables, row) for member in pattern.members]
            terms = axes_of_terms(splits)
            self._known[key] = [
                _Executed.of(member, split, terms if member.on_parameters else (), of_member)
                for member, split, of_member in zip(pattern.members, splits, costs, strict=True)
            ]
        return self._known[key]

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

    def _load(self, name: str, wanted: Layout, shares: int, forbidden: str | None) -> Load:
        context = self._problem.context
        here = tuple(arriving(context.graph.tensors[name], context.mesh).tolist())
        return Load(
            tensor=name,
            arrives=describe(here, ()),
            steps=self._steps(
                name, self._placed(here, shares), self._placed(wanted, shares), forbidden
            ),
        )

    def _placed(self, layout: Layout, shares: int) -> Layout:
        """Returns a layout as re-scheduling identifies it, with its proportion if any."""
        rows = np.array([layout], dtype=np.int8), np.array([shares], dtype=np.int8)
        return _row(self._problem.context.mesh.placed(*rows)[0])

    def _words(self, layout: Layout) -> list[str]:
        """Returns the file form of a layout, one word per axis."""
        return describe(layout[: len(self._axes)], ())

    def _proportion(self, layout: Layout) -> int | UnsetType:
        """Returns the proportion of a layout, on several kinds of devices."""
        return layout[-1] if len(layout) > len(self._axes) else UNSET

    def _move(
        self,
        port: int,
        name: str,
        source: LayoutPair,
        wanted: LayoutPair,
        shares: int,
        forbidden: str | None,
    ) -> Move:
        def steps(here: Layout, there: Layout) -> Steps:
            ends = self._placed(here, shares), self._placed(there, shares)
            return self._steps(name, *ends, forbidden)

        gradient = self._problem.context.patterns.carries_gradient(name)
        return Move(
            input=port,
            tensor=name,
            forward=steps(source.forward, wanted.forward),
            backward=steps(wanted.gradient, source.gradient) if gradient else [],
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
            layout_at_source=self._words(here),
            layout_at_target=self._words(there),
            kept=ALTERNATIVES[kept],
            memory_bytes=float(edge.table.memory_bytes[row, column, alternative]),
            time_s=float(edge.table.time_s[row, column, alternative]),
            forward=forward,
            backward=self._steps(name, *back, forbidden) if backward else [],
            again=rebuild,
            proportion_at_source=self._proportion(here),
            proportion_at_target=self._proportion(there),
        )

    def _steps(self, name: str, a: Layout, b: Layout, forbidden: str | None) -> Steps:
        """Returns the priced sequence of steps between two layouts of a tensor."""
        if a == b:
            return []
        context = self._problem.context
        tensor = context.graph.tensors[name]
        paths = context.rescheduler(tensor.extents, DTYPE_BYTES[tensor.dtype], forbidden)
        return [self._step(step) for step in paths.path_between(a, b)]

    def _step(self, step: Step) -> documents.Step:
        return documents.Step(
            operation=step.operation,
            axes=[axis for a, axis in enumerate(self._axes) if step.axes >> a & 1],
            size_bytes=step.size_bytes,
            time_s=step.time_s,
            result=self._words(step.result),
            proportion=self._proportion(step.result),
        )


def choice_of(problem: SearchProblem, group: int, choice: int) -> Choice:
    """Returns a group's choices under configuration `choice`."""
    axes, sums = problem.context.mesh.axes, problem.context.mesh.gradient_sums
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
        proportion=int(cost.proportion[choice]) if len(sums) > 1 else UNSET,
        gradient_sum=sum_name(sums[int(cost.gradient_sum[choice])]) if len(sums) > 1 else UNSET,
    )


def sum_name(gradient_sum: GradientSum | None) -> str:
    """Returns the name of a kind of gradient sum."""
    return COLLECTIVE_SUM if gradient_sum is None else gradient_sum.name


def _words(layouts: Iterable[LayoutPair]) -> list[list[str]]:
    return [describe(pair.forward, ()) for pair in layouts]


def _row(layout: Any) -> Layout:
    return tuple(int(state) for state in layout)
