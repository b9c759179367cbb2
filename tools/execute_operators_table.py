"""The tables of docs/execute-operators.md: how every described operator runs on shares.

Like the splits of tools/operators_table.py, they are read from the descriptions' examples: every
variable of an example is split in two, and its local operator says which form it has.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from math import prod
from pathlib import Path

from shardwise.execute.exchange import Exchange
from shardwise.execute.local.build import local_operator
from shardwise.execute.local.random_numbers import DRAWN
from shardwise.execute.rank_mesh import RankMesh
from shardwise.graph.graph import Operator, Tensor
from shardwise.graph.semantics import OperatorSemantics
from shardwise.sharding.layout import shard_fits
from shardwise.tdl.coverage import shipped
from shardwise.tdl.describe import Description
from shardwise.tdl.registry import analyse_strictly
from shardwise.tdl.verification import examples_of, graph_of, run_with_torch, shapes_with_torch

COMMAND = "make tables"
PARTS = 2


@dataclass
class Row:
    """The forms of one kind over its examples; `gathered` is the reason by variable."""

    description: Description
    forms: set[str] = field(default_factory=set)
    gathered: dict[str, str] = field(default_factory=dict)

    @property
    def group(self) -> str:
        """The column of the first table that counts it."""
        if self.description.replicated:
            return "never split"
        if self.gathered:
            return "gathered"
        if self.description.kind in DRAWN:
            return "by chance"
        if not self.forms:
            return "no example"
        return "own" if "own" in self.forms else "plain"


COLUMNS = ("plain", "own", "by chance", "gathered", "never split", "no example")


def is_legal(
    semantics: OperatorSemantics,
    op: Operator,
    tensors: Mapping[str, Tensor],
    split: Sequence[int | None],
    sizes: Sequence[int],
) -> bool:
    """Returns whether a mesh of `sizes` may split these variables (cost/legality.py)."""
    for v in {v for v in split if v is not None}:
        parts = prod(n for n, w in zip(sizes, split, strict=True) if w == v)
        if not shard_fits(semantics.variables[v].extent, parts):
            return False
        accesses = (*semantics.inputs, *semantics.outputs)
        for name, by_variable in zip((*op.inputs, *op.outputs), accesses, strict=True):
            access = by_variable.get(v)
            if access is None:
                continue
            extent = tensors[name].shape[access.dim]
            halo = max(access.halo_before, access.halo_after)
            fits = shard_fits(extent, parts) and access.granularity % parts == 0
            if not fits or halo > extent // parts:
                return False
    return True


def rows() -> list[Row]:
    """Returns every shipped description with its forms."""
    mesh = RankMesh(("x",), (PARTS,), PARTS - 1)
    table = []
    for described in shipped():
        row = Row(described)
        for example in examples_of(described):
            if described.replicated:
                continue
            on_cuda = example.needs == "cuda"
            run = (shapes_with_torch if on_cuda else run_with_torch)(described.kind)
            op, tensors = graph_of(described.kind, example, run)
            semantics = analyse_strictly(op, tensors)
            for v, variable in enumerate(semantics.variables):
                if is_legal(semantics, op, tensors, (v,), (PARTS,)):
                    local = local_operator(op, tensors, semantics, (v,), mesh, Exchange(mesh))
                    row.forms.add(local.form)
                    if local.fallback is not None:
                        row.gathered.setdefault(variable.name, local.fallback)
        table.append(row)
    return table


def tables(every: Sequence[Row]) -> str:
    """Returns the generated part of the page: counts by family, then what is gathered and why."""
    lines = ["| family | " + " | ".join(COLUMNS) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
    by_family = sorted(every, key=lambda row: row.description.family)
    for family, members in groupby(by_family, key=lambda row: row.description.family):
        groups = [row.group for row in members]
        lines.append(_counts(family.replace("_", " "), groups))
    lines.append(_counts("**all**", [row.group for row in every]))
    lines += ["", "| operator | split along | gathered because |", "|---|---|---|"]
    for row in every:
        reasons: dict[str, list[str]] = {}
        for variable, why in row.gathered.items():
            reasons.setdefault(why.removeprefix(f"{variable}: "), []).append(variable)
        for why, names in reasons.items():
            lines.append(f"| `{row.description.kind}` | {', '.join(names)} | {why} |")
    return "\n".join(lines) + "\n"


def _counts(name: str, groups: Sequence[str]) -> str:
    return f"| {name} | " + " | ".join(str(groups.count(c) or "–") for c in COLUMNS) + " |"


MARK = f"<!-- what follows is made by `{COMMAND}` -->\n"


def page(text: str) -> str:
    """Returns the page with its generated part rebuilt."""
    return text.partition(MARK)[0] + MARK + "\n" + tables(rows())


def main(arguments: Sequence[str]) -> None:
    """Rebuilds the tables of a page; the text before them stays."""
    output = Path(arguments[0])
    text = page(output.read_text("utf-8"))
    output.write_text(text, "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
