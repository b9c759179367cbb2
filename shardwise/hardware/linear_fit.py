"""HeteroG's linear fits in place of interpolation: a profile whose tables hold fitted times.

Every operator that was measured at enough batches (`batches.py`) gets a line over the batch, every
table of a collective one or two over bytes (`lines.py`). The new profile has the lines' times at
the sizes that were measured, and says so: its tables are derived ones. All that reads a profile
reads this one as any other. Between the sizes of a table it interpolates as always, which between
points of a line twice apart is at most 2 % above it. What has too few sizes for a line stays as it
is, and so do the tables of devices (products, attention).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shardwise.errors import BadInput
from shardwise.hardware.batches import batches_of
from shardwise.hardware.hardware import CollectiveTable, Hardware
from shardwise.hardware.lines import LEAST, collective_lines, least_squares
from shardwise.hardware.operator_tables import OperatorTable

RULE = "linear fit"
OVER_BATCH = f"{RULE}: for each operator t = a · batch + b"


def linear_fit(hardware: Hardware) -> Hardware:
    """Returns the profile with fitted times, and its name with `-linear`.

    Raises `BadInput` where no table has enough sizes.
    """
    operators, fitted = _operators(hardware.operators)
    collectives = tuple(_collective(table) for table in hardware.collectives)
    replaced = sum(a is not b for a, b in zip(collectives, hardware.collectives, strict=True))
    if not fitted and not replaced:
        raise BadInput(
            f"no table of {hardware.name} was measured at {LEAST} sizes",
            field="hardware",
            expected="a profile that shardwise measure wrote",
        )
    sources = dict(hardware.sources)
    calls = sum(len(table.times_s) for table in hardware.operators)
    for name, count, of, over in (
        ("operators", fitted, calls, "calls on lines over the batch"),
        ("collectives", replaced, len(collectives), "tables on lines over bytes"),
    ):
        if count:
            before = f"; {sources[name]}" if name in sources else ""
            sources[name] = f"{RULE}: {count} of {of} {over}{before}"
    return replace(
        hardware,
        name=f"{hardware.name}-linear",
        provenance=f"{RULE} of {hardware.id}: {hardware.provenance}",
        operators=operators,
        collectives=collectives,
        sources=sources,
    )


def _operators(tables: tuple[OperatorTable, ...]) -> tuple[tuple[OperatorTable, ...], int]:
    """Returns the tables, each fitted call in one that says so, and how many calls are fitted."""
    fitted: dict[int, dict[int, float]] = {}
    for operator in batches_of(tables):
        line = least_squares(operator.batches, operator.times_s)
        for call, batch in zip(operator.calls, operator.batches.tolist(), strict=True):
            fitted.setdefault(call.table, {})[call.row] = line.slope * batch + line.fixed
    found: list[OperatorTable] = []
    for number, table in enumerate(tables):
        on_lines = fitted.get(number, {})
        others = [row for row in range(len(table.times_s)) if row not in on_lines]
        if others:
            found.append(table.only(others))
        if on_lines:
            rows = sorted(on_lines)
            times = tuple(on_lines[row] for row in rows)
            found.append(replace(table.only(rows), times_s=times, derived=OVER_BATCH))
    return tuple(found), sum(len(rows) for rows in fitted.values())


def _collective(table: CollectiveTable) -> CollectiveTable:
    if table.derived or len(table.sizes_bytes) < LEAST:
        return table
    sizes = np.array(table.sizes_bytes)
    lines = collective_lines(table.operation, sizes, np.array(table.times_s))
    times = tuple(lines.times(sizes).tolist())
    return replace(
        table, times_s=times, p10_s=(), p90_s=(), repeats=(), derived=f"{RULE}: {lines}, x in bytes"
    )
