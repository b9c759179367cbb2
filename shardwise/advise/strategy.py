"""One strategy spelled out: what of `shardwise.plan/1` says how to execute it.

Per group its split, ZeRO stage and recomputation; per operator the layouts of its inputs and
outputs, the inputs of the graph that it loads and the tensors that it reads in another layout than
they have in its group; per crossing the sequence of collectives, forward, backward, and again where
backward makes a copy once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from shardwise.advise.assemble import SearchEdge, SearchProblem
from shardwise.advise.breakdown import operator_costs
from shardwise.advise.crossings import AFTER, ALTERNATIVES, BEFORE, REBUILT
from shardwise.advise.data_loading import arriving
from shardwise.advise.group_costs import GroupCosts
from shardwise.advise.layout import describe
from shardwise.advise.operator_layouts import (
    Layout,
    LayoutPair,
    OperatorLayouts,
    operator_layouts,
    split_of,
)
from shardwise.advise.pattern import GroupPattern
from shardwise.advise.pins import forbidden_end
from shardwise.advise.reschedule import Step
from shardwise.advise.shares import Shares
from shardwise.graph import DTYPE_BYTES
from shardwise.graph.coarsen import Member

Steps = list[dict[str, Any]]


class Strategy:
    """The choices of one strategy: a configuration per group, an alternative per edge."""

    def __init__(
        self, problem: SearchProblem, choices: Sequence[int], edge_choices: Sequence[int]
    ) -> None:
        self._problem = problem
        self._choices = [int(choice) for choice in choices]
        self._edge_choices = [int(choice) for choice in edge_choices]
        self._axes = tuple(axis.name for axis in problem.context.mesh.axes)

    def groups(self) -> list[dict[str, Any]]:
        """Every group with its operators."""
        return [self._group(index) for index in range(len(self._choices))]

    def edges(self) -> list[dict[str, Any]]:
        """Every kind of crossing between two groups."""
        return [self._edge(e, edge) for e, edge in enumerate(self._problem.edges)]

    def configuration(self, index: int, choice: int) -> dict[str, Any]:
        """What a group chooses with its configuration `choice`."""
        pattern, cost = self._problem.patterns[index], self._problem.costs[index]
        variables = pattern.group.variables
        return {
            "split": {
                axis: (variables[v] if v >= 0 else None)
                for axis, v in zip(self._axes, cost.assignment[choice].tolist(), strict=True)
            },
            "zero": int(cost.zero[choice]),
            "zero_axes": [
                axis for a, axis in enumerate(self._axes) if int(cost.zero_axes[choice]) >> a & 1
            ],
            "recompute": bool(cost.recompute[choice]),
        }

    def _group(self, index: int) -> dict[str, Any]:
        pattern, cost = self._problem.patterns[index], self._problem.costs[index]
        choice = self._choices[index]
        shares = operator_costs(self._problem, index, choice)
        return {
            "name": pattern.group.name,
            "choice": choice,
            "segment": self._problem.context.segments[index],
            **self.configuration(index, choice),
            "parameter_bytes": float(cost.parameter_bytes[choice]),
            "activation_bytes": float(cost.activation_bytes[choice]),
            "compute_s": float(cost.compute_s[choice]),
            "compute_shares": Shares.of_columns(cost.compute_by_source_s[choice]).document(),
            "communication_s": float(cost.communication_s[choice]),
            "operators": [
                {**operator, **asdict(share)}
                for operator, share in zip(
                    self._operators(pattern, cost, choice), shares, strict=True
                )
            ],
        }

    def _operators(self, pattern: GroupPattern, cost: GroupCosts, choice: int) -> list[Any]:
        tensors = self._problem.context.graph.tensors
        row = cost.assignment[choice].tolist()
        pins = self._problem.context.pins
        forbidden = forbidden_end(pins, pattern.group)
        exempt = pins.of(pattern.group, "precision")
        there: dict[str, LayoutPair] = {}
        found = []
        for member in pattern.members:
            split = split_of(member.variables, row)
            layouts = operator_layouts(member.semantics, split)
            loads, moves = [], []
            for port, name in enumerate(member.operator.inputs):
                wanted = layouts.inputs[port]
                first = name not in there
                source = there.setdefault(name, wanted)
                if tensors[name].role == "input":
                    if first:
                        loads.append(self._load(name, wanted.forward, forbidden))
                elif self._moves(pattern, name, source, wanted):
                    moves.append(self._move(port, name, source, wanted, forbidden))
            there.update(zip(member.operator.outputs, layouts.outputs, strict=True))
            entry = _operator(member, split, layouts, loads, moves)
            if any(rule.binds(member.operator) for rule in exempt):
                entry["precision"] = "captured"
            found.append(entry)
        return found

    def _moves(
        self, pattern: GroupPattern, name: str, source: LayoutPair, wanted: LayoutPair
    ) -> bool:
        """Whether a member reads an activation otherwise than it is there (`group_work.py`)."""
        context = self._problem.context
        made_by = context.graph.producer.get(name)
        if made_by is None or made_by.name not in self._problem.coarsened.group_of:
            return False
        agrees = source.forward == wanted.forward and (
            source.gradient == wanted.gradient or not context.patterns.carries_gradient(name)
        )
        return not agrees

    def _load(self, name: str, wanted: Layout, forbidden: str | None) -> dict[str, Any]:
        context = self._problem.context
        here = tuple(arriving(context.graph.tensors[name], context.mesh).tolist())
        return {
            "tensor": name,
            "arrives": describe(here, ()),
            "steps": self._steps(name, here, wanted, forbidden),
        }

    def _move(
        self,
        port: int,
        name: str,
        source: LayoutPair,
        wanted: LayoutPair,
        forbidden: str | None,
    ) -> dict[str, Any]:
        gradient = self._problem.context.patterns.carries_gradient(name)
        back = self._steps(name, wanted.gradient, source.gradient, forbidden) if gradient else []
        return {
            "input": port,
            "tensor": name,
            "forward": self._steps(name, source.forward, wanted.forward, forbidden),
            "backward": back,
        }

    def _edge(self, e: int, edge: SearchEdge) -> dict[str, Any]:
        problem, name = self._problem, edge.tensors[0]
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
        again: Steps = []
        if kept in (BEFORE, REBUILT):
            again = forward
        elif (
            kept == AFTER
            and source.exit_deferred[exit_number]
            and not problem.costs[edge.source].recompute[at_source]
        ):
            # Both sides need the tensor, and the source's copy goes.
            again = self._steps(name, there, here, forbidden)
        backward = problem.context.patterns.carries_gradient(name)
        back = (_row(into.gradient[at_target]), _row(out.gradient[at_source]))
        return {
            "source": source.group.name,
            "target": target.group.name,
            "tensors": list(edge.tensors),
            "layout_at_source": describe(here, ()),
            "layout_at_target": describe(there, ()),
            "kept": ALTERNATIVES[kept],
            "memory_bytes": float(edge.table.memory_bytes[row, column, alternative]),
            "time_s": float(edge.table.time_s[row, column, alternative]),
            "forward": forward,
            "backward": self._steps(name, *back, forbidden) if backward else [],
            "again": again,
        }

    def _steps(self, name: str, a: Layout, b: Layout, forbidden: str | None) -> Steps:
        """The sequence that the search priced between two layouts of a tensor."""
        if a == b:
            return []
        context = self._problem.context
        tensor = context.graph.tensors[name]
        paths = context.rescheduler(tensor.shape, DTYPE_BYTES[tensor.dtype], forbidden)
        return [self._step(step) for step in paths.path_between(a, b)]

    def _step(self, step: Step) -> dict[str, Any]:
        return {
            "operation": step.operation,
            "axes": [axis for a, axis in enumerate(self._axes) if step.axes >> a & 1],
            "size_bytes": step.size_bytes,
            "time_s": step.time_s,
            "result": describe(step.result, ()),
        }


def _operator(
    member: Member, split: Sequence[int | None], layouts: OperatorLayouts, loads: Any, moves: Any
) -> dict[str, Any]:
    op, sem = member.operator, member.semantics
    inputs = zip(op.inputs, layouts.inputs, strict=True)
    outputs = zip(op.outputs, layouts.outputs, strict=True)
    return {
        "name": op.name,
        "kind": op.kind,
        "split": [None if v is None else sem.variables[v].name for v in split],
        "variables": list(split),
        "inputs": {name: describe(pair.forward, ()) for name, pair in inputs},
        "outputs": {name: describe(pair.forward, ()) for name, pair in outputs},
        "loads": loads,
        "moves": moves,
    }


def _row(layout: Any) -> Layout:
    return tuple(int(state) for state in layout)
