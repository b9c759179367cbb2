"""The splits of every described operator, as its examples show them: tools/operator_splits.json.

Splits depend on shapes and attributes, so they are read from the examples: a variable is listed
if at least one example can be split along it. This runs the real operators (for the shapes of
their results) and needs torch. `make reference` writes docs/reference/operators.md from the file,
without torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shardwise.graph.semantics import OperatorSemantics
from shardwise.tdl.coverage import shipped
from shardwise.tdl.describe import Description
from shardwise.tdl.language import is_numbered
from shardwise.tdl.registry import analyse_strictly
from shardwise.tdl.verification import examples_of, graph_of, run_with_torch, shapes_with_torch

FILE = Path(__file__).with_name("operator_splits.json")

Splits = Mapping[str, str]
"""Names by column of the table, such as `{"output": "b, out", "reduced": "in"}`."""


@dataclass
class Row:
    """The splits of one kind over all of its examples; names in the order they were found."""

    output: dict[str, None] = field(default_factory=dict)
    reduced: dict[str, None] = field(default_factory=dict)
    statistic: dict[str, None] = field(default_factory=dict)
    halo: dict[str, None] = field(default_factory=dict)
    keeps: dict[str, None] = field(default_factory=dict)

    def add(self, semantics: OperatorSemantics, inputs: Sequence[str]) -> None:
        reduced = {v for s in semantics.statistics for v in s.reduced}
        for v, variable in enumerate(semantics.variables):
            name = _dim_name(variable.name)
            if v in reduced:
                self.statistic[name] = None
            elif variable.reducer is not None:
                sign = "" if variable.reducer == "sum" else f" ({variable.reducer})"
                self.reduced[f"{name}{sign}"] = None
            else:
                self.output[name] = None
            if any(a.halo_before or a.halo_after for x in semantics.inputs if (a := x.get(v))):
                self.halo[name] = None
        for name, saved in zip(inputs, semantics.saves_inputs, strict=True):
            if saved:
                self.keeps[name.partition(".")[0]] = None
        for place, saved in enumerate(semantics.saves_outputs):
            if saved:
                single = len(semantics.saves_outputs) == 1
                self.keeps["result" if single else f"result {place}"] = None

    def splits(self) -> Splits:
        """Returns the columns that are not empty."""
        return {column: ", ".join(names) for column, names in vars(self).items() if names}


def _dim_name(name: str) -> str:
    """Returns a variable's name; `dim 2` if the description gives none."""
    return f"dim {name[1:]}" if is_numbered(name) else name


def splits_of(descriptions: Iterable[Description]) -> dict[str, Splits]:
    """Returns the splits by kind; examples that need a GPU use their description alone."""
    splits: dict[str, Splits] = {}
    for description in descriptions:
        if description.replicated:
            continue
        row = Row()
        for example in examples_of(description):
            run = (shapes_with_torch if example.needs else run_with_torch)(description.kind)
            operator, tensors = graph_of(description.kind, example, run)
            row.add(analyse_strictly(operator, tensors), list(example.shapes))
        splits[description.kind] = row.splits()
    return splits


def text_of(splits: Mapping[str, Splits]) -> str:
    """Returns the file's text: a kind on each line."""
    lines = [f" {json.dumps(kind)}: {json.dumps(splits[kind])}" for kind in sorted(splits)]
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    FILE.write_text(text_of(splits_of(shipped())), "utf-8")
