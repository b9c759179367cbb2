"""The common structure of forward and backward: tables, crossings, positions of operators."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import NamedTuple

from shardwise.cost.assemble import SearchProblem
from shardwise.cost.step_settings import StepSettings
from shardwise.graph.order import OperatorOrder
from shardwise.replay.columns import GroupTable
from shardwise.replay.edge_values import COLUMN
from shardwise.replay.footprint import Footprint, footprint
from shardwise.replay.layers import GONE, Folded, KeptEdge
from shardwise.replay.record import ALWAYS, Cell
from shardwise.replay.tape import BEFORE, COMMUNICATION, NOBODY, Tape
from shardwise.sharding.coarsen import Member


@dataclass(frozen=True)
class Crossing:
    """A tensor that crosses groups; `table` and `owner` are those of its edge."""

    tensor: str
    source: int
    target: int
    table: int
    owner: int

    def cell(self, column: str) -> Cell:
        return Cell(self.table, self.owner, COLUMN[column])


class Copy(NamedTuple):
    """A buffer that holds a tensor under a flag, from the end of task `maker` on."""

    buffer: int
    maker: int
    flag: int = ALWAYS


Copies = tuple[Copy, ...]


class StepStructure:
    """The structure of one search problem. Tables of groups are numbered before those of edges."""

    def __init__(
        self,
        problem: SearchProblem,
        settings: StepSettings,
        tables: list[GroupTable],
        order: OperatorOrder | None = None,
        folded: Folded | None = None,
    ) -> None:
        """`folded` says which of the problem's layers are written, if not all are."""
        self.problem = problem
        self.settings = settings
        self.graph = problem.context.graph
        # The operators in the order in which forward and backward run them.
        by_name = {op.name: op for op in self.graph.operators}
        self.operators = self.graph.operators if folded is None else tuple(folded.operators)
        self.backward_operators = self.operators[::-1]
        self.groups = problem.coarsened.groups if folded is None else tuple(folded.groups)
        self._folded = folded
        self._members = {group.index: group.members for group in self.groups}
        if order is not None:
            self.operators = tuple(by_name[name] for name in order.forward)
            self.backward_operators = tuple(by_name[name] for name in order.backward)
        self.patterns = problem.context.patterns
        self.tape = Tape()
        self.tables = tables
        self.group_table, self.edge_table = table_numbers(problem)
        # After which task of computation each group that gathers its parameters began, in order:
        # in forward and in backward itself, and in forward and in the recomputations.
        self.begun: list[int] = []
        self.begun_again: list[int] = []
        self.crossings = self._all_crossings()
        self.leaving = {
            (c.tensor, c.source): c
            for c in self.crossings.values()
            if self.patterns.deferred(c.tensor, c.source)
        }
        self.place = {
            m.operator.name: (g.index, position)
            for g in self.groups
            for position, m in enumerate(g.members)
        }
        self.footprints = footprints_of(problem, settings)
        self.rerun = problem.context.rerun

    def _all_crossings(self) -> dict[tuple[str, int], Crossing]:
        """Returns the crossings by tensor and reading group."""
        numbered = enumerate(self.problem.edges)
        every = [KeptEdge(e, edge.source, edge.target, edge.tensors) for e, edge in numbered]
        return {
            (name, edge.target): Crossing(
                name, edge.source, edge.target, self.edge_table[edge.number], edge.number
            )
            for edge in (every if self._folded is None else self._folded.edges)
            for name in edge.tensors
        }

    def member(self, group: int, position: int) -> Member:
        return self._members[group][position]

    def members(self, group: int) -> tuple[Member, ...]:
        return self._members[group]

    def described(self, member: Member) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
        """Returns the inputs and outputs of a member that its description says backward needs."""
        if self._folded is not None and member.operator.name in self._folded.whole:
            # Fused passes are identified by their reads in the whole model.
            member = replace(member, operator=self._folded.whole[member.operator.name])
        return self.patterns.saves_inputs(member), self.patterns.saves_outputs(member)

    def is_written(self, buffer: str) -> bool:
        """Returns whether the layer is written that a buffer of the graph is for."""
        return self._folded is None or self._folded.layer.get(buffer) != GONE

    def at(self, name: str) -> None:
        """Marks what follows as written for an operator, or for a buffer of the graph."""
        if self._folded is not None:
            self.tape.of_layer(self._folded.layer.get(name, NOBODY))

    def at_group(self, group: int) -> None:
        """Marks what follows as written for a group."""
        if self._folded is not None:
            self.tape.of_layer(int(self._folded.of_groups[group]))

    def table(self, group: int) -> GroupTable:
        return self.tables[self.group_table[group]]

    def cell(self, group: int, column: int) -> Cell:
        """Returns the cell of a column of the group's own table."""
        return Cell(self.group_table[group], group, column)

    def segment(self, group: int) -> int:
        """Returns the segment of recomputation that the group belongs to."""
        if self._folded is not None:
            return int(self._folded.segments[group])
        return self.problem.context.segments[group]

    def backward_runs(self, member: Member) -> bool:
        return self.patterns.has_backward(member)


def table_numbers(problem: SearchProblem) -> tuple[list[int], list[int]]:
    """Returns the number of the table of each group and of each edge; equal costs share one.

    Tables of groups are numbered before those of edges.
    """
    known: dict[int, int] = {}
    groups = [known.setdefault(id(costs), len(known)) for costs in problem.costs]
    numbers: dict[int, int] = {}
    edges = [
        numbers.setdefault(id(edge.table), len(known) + len(numbers)) for edge in problem.edges
    ]
    return groups, edges


def numbered_tables(problem: SearchProblem) -> list[GroupTable]:
    """Returns the tables of groups, in the order of `table_numbers`."""
    tables: dict[int, GroupTable] = {}
    for pattern, costs in zip(problem.patterns, problem.costs, strict=True):
        if id(costs) not in tables:
            tables[id(costs)] = GroupTable(problem.context, pattern, costs)
    return list(tables.values())


def footprints_of(problem: SearchProblem, settings: StepSettings) -> dict[str, Footprint]:
    """Returns the footprint of every operator of a group, by name."""
    patterns, device = problem.context.patterns, settings.device

    def made() -> dict[str, Footprint]:
        members = (m for g in problem.coarsened.groups for m in g.members)
        return {m.operator.name: footprint(m, patterns, device) for m in members}

    return patterns.once(("footprints", device), made)


def problem_structure(
    problem: SearchProblem, settings: StepSettings, written: int
) -> tuple[Hashable, object]:
    """Returns what determines a problem's step program, except for tables and which edges share
    one.

    The first must be equal and is hashable, the second must be equal. `written` is the maximum
    number of written micro-batches; further ones change nothing.
    """
    context = problem.context
    groups, _ = table_numbers(problem)
    key = (
        min(context.micro_batches, written + 1),
        settings,
        context.options.optimizer,
        tuple(groups),
        tuple((e.source, e.target, e.tensors) for e in problem.edges),
        context.segments,
        context.rerun,
        context.hardware.id if problem.coarsened.constants else None,
    )
    deferred = [
        (name, edge.source)
        for edge in problem.edges
        for name in edge.tensors
        if context.patterns.deferred(name, edge.source)
    ]
    same = context.patterns.once("written", lambda: _tensors_written(problem))
    return key, (same, deferred, footprints_of(problem, settings))


def _tensors_written(problem: SearchProblem) -> object:
    """Returns a graph's tensors that affect the program: constants, buffers, data types."""
    tensors = problem.context.graph.tensors
    constants = [
        (op.name, [tensors[n].size_bytes for n in (*op.inputs, *op.outputs)])
        for op in problem.coarsened.constants
    ]
    buffers = [(name, t.size_bytes) for name, t in tensors.items() if t.role == "buffer"]
    return constants, buffers, [t.dtype for t in tensors.values()]


class Weights:
    """Parameters that ZeRO stage 3 has sharded, gathered for one pass.

    A group's parameters may be gathered as soon as the group before has begun to compute, one group
    ahead, as FSDP does (Zhao et al. 2023, §3.3). Their last use in the pass frees them.

    A group that recomputes gathers them for the recomputation, others for backward itself. Since
    this depends on the strategy, both are written, each after the respective previous group; the
    one that does not happen takes no time and no memory.
    """

    def __init__(self, step: StepStructure) -> None:
        self._step = step
        self._gathered: dict[tuple[int, int, str], Copy] = {}
        self._begun: set[tuple[int, str]] = set()

    def for_forward(self, group: int, position: int) -> Copies:
        """Returns the whole parameters that a member reads in forward."""
        return self._gather(group, position, "forward")

    def for_recomputation(self, group: int, position: int) -> Copies:
        """Returns the whole parameters that a member reads when forward is run again."""
        return self._gather(group, position, "recomputation")

    def for_backward(self, group: int, position: int) -> Copies:
        """Returns the whole parameters that a member's backward reads.

        If the group has run forward again, they are still there.
        """
        copies = self._gather(group, position, "backward")
        if self._step.table(group).may_recompute:
            copies += self.for_recomputation(group, position)
        return copies

    def _gather(self, group: int, position: int, label: str) -> Copies:
        """Returns the parameters that a member reads, gathered at the first use in a pass."""
        step, table = self._step, self._step.table(group)
        if not table.shards_weights:
            return ()
        member = step.member(group, position)
        read = [
            name
            for name in member.operator.inputs
            if label != "backward" or step.patterns.backward_reads(member, name)
        ]
        names = step.problem.patterns[group].parameters
        numbers = [p for p, name in enumerate(names) if name in read]
        if numbers and (group, label) not in self._begun:
            self._begun.add((group, label))
            began = step.tape.last_compute()
            if label != "recomputation":
                step.begun.append(began)
            if label != "backward":
                step.begun_again.append(began)
        return tuple(self._one(group, p, label) for p in numbers)

    def _one(self, group: int, number: int, label: str) -> Copy:
        tape, step, table = self._step.tape, self._step, self._step.table(group)
        if (group, number, label) not in self._gathered:
            name = step.problem.patterns[group].parameters[number]
            begun = step.begun_again if label == "recomputation" else step.begun
            ahead = begun[-2] if len(begun) > 1 else BEFORE
            seconds = table.parameter(number, "gather_s")
            size = table.staged(table.whole_bytes(number), 3)
            if label != "forward" and table.may_recompute:
                recomputes = label == "recomputation"
                seconds = table.where_recomputed(seconds, recomputes)
                size = table.where_recomputed(size, recomputes)
            task = tape.task(
                f"gather {name} for {label}", COMMUNICATION, step.cell(group, seconds), (ahead,)
            )
            self._gathered[group, number, label] = Copy(
                tape.buffer(f"{name} whole", task, step.cell(group, size)), task
            )
        return self._gathered[group, number, label]
