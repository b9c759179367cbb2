"""Turns timings into operator tables, and merges tables."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from shardwise.hardware.operator_tables import OperatorFamily, OperatorTable
from shardwise.measure.operators.clock import Timing
from shardwise.measure.operators.effort import Effort
from shardwise.measure.operators.needed import OperatorItem

FIGURES = 6
"""Significant digits of times."""


def tables_of(
    results: Sequence[tuple[OperatorItem, Timing]], effort: Effort, threads: int
) -> tuple[OperatorTable, ...]:
    """Returns one table per family, in order of first appearance."""
    by_family: dict[OperatorFamily, list[tuple[OperatorItem, Timing]]] = {}
    for item, timing in results:
        by_family.setdefault(item.family, []).append((item, timing))
    return tuple(_table(family, rows, effort, threads) for family, rows in by_family.items())


def _table(
    family: OperatorFamily,
    rows: list[tuple[OperatorItem, Timing]],
    effort: Effort,
    threads: int,
) -> OperatorTable:
    return OperatorTable(
        family.kind,
        family.direction,
        effort.kind,
        msgspec.json.decode(family.attributes),
        family.arguments,
        family.dtypes,
        family.strides,
        family.gradients,
        family.outputs,
        threads,
        effort.ranks,
        effort.flushed,
        tuple(item.shapes for item, _ in rows),
        tuple(item.flops for item, _ in rows),
        tuple(item.moved_bytes for item, _ in rows),
        tuple(_rounded(timing.time_s) for _, timing in rows),
        tuple(round(timing.spread, 4) for _, timing in rows),
        tuple(timing.repetitions for _, timing in rows),
    )


def _rounded(value: float) -> float:
    return float(f"{value:.{FIGURES}g}")


def merged(old: Sequence[OperatorTable], new: Sequence[OperatorTable]) -> tuple[OperatorTable, ...]:
    """Merges old and new tables: a call in both keeps its new measurement."""
    measured = {(t.device, t.family, shapes) for t in new for shapes in t.shapes}
    kept = []
    for table in old:
        rows = [
            i
            for i, shapes in enumerate(table.shapes)
            if (table.device, table.family, shapes) not in measured
        ]
        if rows:
            kept.append(table.only(rows))
    return (*kept, *new)
