"""How every described operator runs on shares: tools/operator_forms.json.

Like the splits of tools/operators_table.py, the forms are read from the descriptions' examples:
every variable of an example is split in two, and its local operator says which form it has. This
needs torch. `make reference` writes docs/reference/execute-operators.md from the file, without it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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

FILE = Path(__file__).with_name("operator_forms.json")
PARTS = 2

Forms = Mapping[str, str | Mapping[str, str]]
"""By kind: one of `COLUMNS`, or why it is gathered, by variable."""


@dataclass
class Row:
    """The forms of one kind over its examples; `gathered` is the reason by variable."""

    description: Description
    forms: set[str] = field(default_factory=set)
    gathered: dict[str, str] = field(default_factory=dict)

    @property
    def group(self) -> str:
        """The column of the page's first table that counts it."""
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


def forms_of(every: Sequence[Row]) -> dict[str, str | dict[str, str]]:
    """Returns the form of each kind; of a gathered one the reason by variable."""
    return {
        row.description.kind: {
            variable: why.removeprefix(f"{variable}: ") for variable, why in row.gathered.items()
        }
        if row.group == "gathered"
        else row.group
        for row in every
    }


def text_of(forms: Forms) -> str:
    """Returns the file's text: a kind on each line."""
    lines = [f" {json.dumps(kind)}: {json.dumps(forms[kind])}" for kind in sorted(forms)]
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    FILE.write_text(text_of(forms_of(rows())), "utf-8")
