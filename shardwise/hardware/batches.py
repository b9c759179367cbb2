"""Operators that were measured at several batches: what HeteroG fits a line to.

A family's calls differ in shapes alone (`operator_tables.py`). The batch of a call is the leading
extent of its first output or, where that has no dimensions, of its first input that has some. Calls
of a family that are equal in all extents but those leading ones that equal the batch are the same
operator at different batches: a linear layer with its weight, whatever the rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from shardwise.hardware.grid import Floats
from shardwise.hardware.lines import LEAST
from shardwise.hardware.operator_tables import OperatorFamily, OperatorTable, Shapes

BATCH = -1
"""Stands for the batch where calls are compared."""


class Call(NamedTuple):
    """A row of a table, both by their numbers."""

    table: int
    row: int


@dataclass(frozen=True)
class Batches:
    """The calls of one operator, at least `LEAST` of them, each of another batch."""

    calls: tuple[Call, ...]
    batches: Floats
    times_s: Floats


def batches_of(tables: Sequence[OperatorTable]) -> list[Batches]:
    """Returns every operator that was measured at enough batches; derived tables do not count."""
    operators: dict[tuple[str, OperatorFamily, Shapes], dict[int, Call]] = defaultdict(dict)
    for number, table in enumerate(tables):
        if table.derived:
            continue
        for row, shapes in enumerate(table.shapes):
            batch = _batch(shapes, len(table.arguments))
            operator = (table.device, table.family, _without(batch, shapes))
            operators[operator].setdefault(batch, Call(number, row))
    return [
        Batches(
            tuple(calls.values()),
            np.array(list(calls), dtype=np.float64),
            np.array([tables[table].times_s[row] for table, row in calls.values()]),
        )
        for calls in operators.values()
        if len(calls) >= LEAST
    ]


def _batch(shapes: Shapes, inputs: int) -> int:
    outputs_first = (*shapes[inputs:], *shapes[:inputs])
    return next((shape[0] for shape in outputs_first if shape), 1)


def _without(batch: int, shapes: Shapes) -> Shapes:
    return tuple((BATCH, *shape[1:]) if shape and shape[0] == batch else shape for shape in shapes)
