"""Cache of step programs by problem structure.

A model's step is the same program for every number of GPUs, and for every number of micro-batches
from three on; only values differ. Writing it takes seconds for a large model, so a program is kept
with the columns and facts that it took from its problem, and reused for problems with the same
ones.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from shardwise import _core
from shardwise.collector import uncollected
from shardwise.cost.assemble import SearchProblem
from shardwise.cost.step_settings import StepSettings
from shardwise.graph.order import OperatorOrder
from shardwise.replay import program as step_programs
from shardwise.replay.columns import GroupTable
from shardwise.replay.layers import Folded, repetitions_of
from shardwise.replay.numbered import TableStructure
from shardwise.replay.program import Pass, Repeat, StepProgram, step_program
from shardwise.replay.record import Gather, Record
from shardwise.replay.stamp import Stamped, stamped
from shardwise.replay.structure import (
    StepStructure,
    footprints_of,
    numbered_tables,
    problem_structure,
    table_numbers,
)
from shardwise.sharding.once import Once


@dataclass(frozen=True)
class Kit:
    """A step program without a problem's values.

    `durations`, `sizes` and `flags` gather the values from tables; group tables are numbered before
    edge tables. `edge_tables` has each edge's table number.
    """

    tape: Record
    program: _core.Program
    durations: Gather
    sizes: Gather
    flags: Gather
    repeat: Repeat | None
    last_backward: int
    tables: tuple[TableStructure, ...]
    edge_tables: list[int]
    passes: tuple[Pass, ...]
    update: range
    derived: Once = field(default_factory=Once, compare=False)
    """Derived data of the program, shared by all problems."""

    def with_edge_tables(self, numbers: list[int]) -> Kit:
        """Returns the program for edges with other table numbers."""
        tape = self.tape.with_tables(numbers, len(self.tables))
        durations, sizes, flags = _gathers(tape)
        return replace(
            self,
            tape=tape,
            durations=durations,
            sizes=sizes,
            flags=flags,
            edge_tables=numbers,
            derived=Once(),
        )


Kits = dict[Hashable, list[tuple[Any, Kit]]]
"""Kits by problem structure, with what else is compared."""


def kit_for(
    problem: SearchProblem,
    settings: StepSettings,
    kits: Kits,
    made: Callable[[], list[GroupTable]] | None = None,
    *,
    split: bool = False,
) -> tuple[Kit, list[GroupTable]]:
    """Returns a problem's program, written if `kits` has none, and its group tables, which `made`
    creates for each try; with `split` backward is in two parts."""
    structure_key, compared = problem_structure(problem, settings, step_programs.WRITTEN)
    _, of_edges = table_numbers(problem)
    key = structure_key, split
    alike = [kit for other, kit in kits.get(key, ()) if other == compared]
    # First those with the problem's numbering of edge tables.
    for kit in sorted(alike, key=lambda kit: kit.edge_tables != of_edges):
        tables = made() if made is not None else numbered_tables(problem)
        if all(table.follows(taken) for table, taken in zip(tables, kit.tables, strict=True)):
            if kit.edge_tables != of_edges:
                with uncollected():
                    kit = kit.with_edge_tables(of_edges)
                kits[key].append((compared, kit))
            batches = problem.context.micro_batches
            if kit.repeat is None:
                return kit, tables
            repeat = replace(kit.repeat, times=batches - step_programs.WRITTEN)
            return replace(kit, repeat=repeat if repeat.times else None), tables
    kit, tables = written_kit(problem, settings, None if made is None else made(), split=split)
    kits.setdefault(key, []).append((compared, kit))
    return kit, tables


class Written(Protocol):
    """Writes a problem's program; `tables` are those of its groups."""

    def __call__(
        self,
        problem: SearchProblem,
        settings: StepSettings,
        tables: list[GroupTable] | None = None,
    ) -> tuple[Kit, list[GroupTable]]:
        """Returns the program and the tables of groups."""
        ...


def written_kit(
    problem: SearchProblem,
    settings: StepSettings,
    tables: list[GroupTable] | None = None,
    *,
    order: OperatorOrder | None = None,
    split: bool = False,
) -> tuple[Kit, list[GroupTable]]:
    """Returns a newly written program of a problem, and its group tables.

    Operators run in the program's order, or in `order`; with `split` backward is in two parts.
    """
    with uncollected():
        tables = tables or numbered_tables(problem)
        if order is None:
            few = _of_few_layers(problem, settings, tables, split=split)
            if few is not None:
                return few, tables
        written = step_program(problem, settings, tables, order=order, split=split)
        return kit_of(written), tables


def _of_few_layers(
    problem: SearchProblem, settings: StepSettings, tables: list[GroupTable], *, split: bool
) -> Kit | None:
    """Returns a problem's program, extended from that of a few of its layers, if layers repeat and
    have the same structure."""
    numbers, _ = table_numbers(problem)
    repetitions = repetitions_of(problem, numbers, footprints_of(problem, settings))
    if not repetitions:
        return None
    folded = Folded(problem, repetitions)
    written = step_program(problem, settings, tables, split=split, folded=folded)
    whole = stamped(problem, written, folded, len(tables))
    return None if whole is None else _kit(whole, written.structure, whole.record)


def kit_of(written: StepProgram) -> Kit:
    """Returns a written step without its problem's values."""
    return _kit(written, written.structure, written.structure.tape.record())


def _kit(of: StepProgram | Stamped, step: StepStructure, tape: Record) -> Kit:
    return Kit(
        tape,
        tape.program([] if of.repeat is None else of.repeat.marks),
        *_gathers(tape),
        of.repeat,
        of.last_backward,
        tuple(table.structure() for table in step.tables),
        step.edge_table,
        of.passes,
        of.update,
    )


def _gathers(tape: Record) -> tuple[Gather, Gather, Gather]:
    """Returns the gatherers of durations, sizes and flags."""
    return Gather(tape.durations), Gather(tape.sizes), Gather(tape.flags)
