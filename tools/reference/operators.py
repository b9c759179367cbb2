"""docs/reference/operators.md: every described operator with its splits.

The splits are those of tools/operator_splits.json, which `make tables` writes with torch; families,
notes and reasons are read from the descriptions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby

from shardwise.tdl.core_aten import TORCH
from shardwise.tdl.coverage import coverage, shipped
from shardwise.tdl.describe import Description
from shardwise.tdl.verification import examples_of
from tools.operators_table import FILE, Splits

COLUMNS = ("output", "reduced", "statistic", "halo", "keeps")


def page() -> str:
    """Returns the whole page."""
    known = shipped()
    covered = coverage()
    splits: Mapping[str, Splits] = json.loads(FILE.read_text("utf-8"))
    split = [d for d in known if not d.replicated]
    whole = [d for d in known if d.replicated]
    parts = [
        "# Operators\n",
        "Made by `make reference`. How to describe your own: [TDL](../tdl.md).\n",
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
        parts.append(_table(list(members), splits))
    parts.append("## Never split\n")
    parts.append(_reasons(whole))
    return "\n".join(parts)


def _place(description: Description) -> tuple[str, str]:
    return description.family, description.kind


def _table(members: Sequence[Description], splits: Mapping[str, Splits]) -> str:
    """Returns a table in which kinds with the same splits share a line."""
    lines = [f"| operator | {' | '.join(COLUMNS)} |", "|---|---|---|---|---|---|"]
    alike: dict[tuple[str, ...], list[str]] = {}
    for described in members:
        key = tuple(splits[described.kind].get(column, "–") for column in COLUMNS)
        if not examples_of(described):
            key = ("no example", *key[1:])
        alike.setdefault(key, []).append(f"`{described.kind}`")
    for key, kinds in alike.items():
        lines.append(f"| {' '.join(kinds)} | {' | '.join(key)} |")
    notes = dict.fromkeys(d.note for d in members if d.note)
    text = "\n".join(lines) + "\n"
    for note in notes:
        names = ", ".join(f"`{_short(d)}`" for d in members if d.note == note)
        text += f"\n- {names}: {note}."
    return text + ("\n" if notes else "")


def _short(description: Description) -> str:
    return description.kind.removeprefix("aten.").removesuffix(".default")


def _reasons(descriptions: Sequence[Description]) -> str:
    lines = ["| reason | operators |", "|---|---|"]
    by_reason: dict[str, list[str]] = {}
    for d in descriptions:
        by_reason.setdefault(d.replicated, []).append(f"`{d.kind}`")
    lines += [f"| {reason} | {' '.join(kinds)} |" for reason, kinds in by_reason.items()]
    return "\n".join(lines) + "\n"
