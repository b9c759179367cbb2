"""The table of docs/operators.md: every description with its splits, as its examples show them.

Splits depend on shapes and attributes, so they are read from the examples: a variable is listed
where at least one example can be split along it. Making the table runs the real operators (for
the shapes of their results) and needs torch.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from shardwise.graph.semantics import OperatorSemantics
from shardwise.tdl.core_aten import TORCH
from shardwise.tdl.coverage import coverage, shipped
from shardwise.tdl.describe import Description
from shardwise.tdl.language import is_numbered
from shardwise.tdl.registry import analyse_strictly
from shardwise.tdl.verification import examples_of, graph_of, run_with_torch, shapes_with_torch

COMMAND = "make tables"


@dataclass
class Row:
    """The splits of one kind over all of its examples; names in the order they were found."""

    description: Description
    outputs: dict[str, None] = field(default_factory=dict)
    reductions: dict[str, None] = field(default_factory=dict)
    statistics: dict[str, None] = field(default_factory=dict)
    halos: dict[str, None] = field(default_factory=dict)
    kept: dict[str, None] = field(default_factory=dict)

    def add(self, semantics: OperatorSemantics, inputs: Sequence[str]) -> None:
        reduced = {v for s in semantics.statistics for v in s.reduced}
        for v, variable in enumerate(semantics.variables):
            name = _dim_name(variable.name)
            if v in reduced:
                self.statistics[name] = None
            elif variable.reducer is not None:
                sign = "" if variable.reducer == "sum" else f" ({variable.reducer})"
                self.reductions[f"{name}{sign}"] = None
            else:
                self.outputs[name] = None
            if any(a.halo_before or a.halo_after for x in semantics.inputs if (a := x.get(v))):
                self.halos[name] = None
        for name, saved in zip(inputs, semantics.saves_inputs, strict=True):
            if saved:
                self.kept[name.partition(".")[0]] = None
        for place, saved in enumerate(semantics.saves_outputs):
            if saved:
                single = len(semantics.saves_outputs) == 1
                self.kept["result" if single else f"result {place}"] = None


def _dim_name(name: str) -> str:
    """Returns a variable's name; `dim 2` if the description gives none."""
    return f"dim {name[1:]}" if is_numbered(name) else name


def rows(descriptions: Iterable[Description]) -> list[Row]:
    """Returns one row per description; examples that need a GPU use their description alone."""
    table = []
    for d in descriptions:
        row = Row(d)
        for example in () if d.replicated else examples_of(d):
            run = shapes_with_torch(d.kind) if example.needs else run_with_torch(d.kind)
            operator, tensors = graph_of(d.kind, example, run)
            row.add(analyse_strictly(operator, tensors), list(example.shapes))
        table.append(row)
    return table


def document() -> str:
    """Returns docs/operators.md."""
    known = shipped()
    covered = coverage()
    split = [d for d in known if not d.replicated]
    whole = [d for d in known if d.replicated]
    parts = [
        "# Operators\n",
        f"Made by `{COMMAND}`; a test keeps it up to date. How to describe your own: "
        "[tdl.md](tdl.md).\n",
        f"{len(known)} operators are described, of which {len(whole)} are never split, each for a "
        f"reason given [below](#never-split). Of the {covered.total} overloads of core ATen "
        f"(torch {TORCH}) {covered.described} are described: {len(covered.split)} with their "
        f"splits, {len(covered.replicated)} as never split. Every description is run against the "
        "real operator, whole and in shares (`python -m shardwise.tdl verify`).\n",
        "*Output*: dimensions of the result that may be split. *Reduced*: dimensions that are "
        "summed away; a split leaves partial results to be added (or as said). *Statistic*: "
        "dimensions whose split costs an all-reduce of a small intermediate result. *Halo*: "
        "those where a share also reads rows of its neighbours. *Keeps*: tensors that backward "
        "needs. Which of them an operator of a graph has depends on its shapes and attributes; "
        "the table shows those of the examples. `dim 0` is the first dimension of the result.\n",
    ]
    for family, members in groupby(sorted(split, key=_place), key=lambda d: d.family):
        parts.append(f"## {family.replace('_', ' ').capitalize()}\n")
        parts.append(_table(rows(members)))
    parts.append("## Never split\n")
    parts.append(_reasons(whole))
    return "\n".join(parts)


def _place(description: Description) -> tuple[str, str]:
    return description.family, description.kind


def _table(members: Sequence[Row]) -> str:
    """Returns a table in which kinds with the same splits share a line."""
    lines = [
        "| operator | output | reduced | statistic | halo | keeps |",
        "|---|---|---|---|---|---|",
    ]
    alike: dict[tuple[str, ...], list[str]] = {}
    for row in members:
        cells = (row.outputs, row.reductions, row.statistics, row.halos, row.kept)
        key = tuple(", ".join(cell) or "–" for cell in cells)
        if not examples_of(row.description):
            key = ("no example", *["–"] * (len(cells) - 1))
        alike.setdefault(key, []).append(f"`{row.description.kind}`")
    for key, kinds in alike.items():
        lines.append(f"| {' '.join(kinds)} | {' | '.join(key)} |")
    notes = {row.description.note: None for row in members if row.description.note}
    text = "\n".join(lines) + "\n"
    for note in notes:
        names = ", ".join(f"`{_short(row)}`" for row in members if row.description.note == note)
        text += f"\n- {names}: {note}."
    return text + ("\n" if notes else "")


def _short(row: Row) -> str:
    return row.description.kind.removeprefix("aten.").removesuffix(".default")


def _reasons(descriptions: Sequence[Description]) -> str:
    lines = ["| reason | operators |", "|---|---|"]
    by_reason: dict[str, list[str]] = {}
    for d in descriptions:
        by_reason.setdefault(d.replicated, []).append(f"`{d.kind}`")
    lines += [f"| {reason} | {' '.join(kinds)} |" for reason, kinds in by_reason.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(document(), "utf-8")
