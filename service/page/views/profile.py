"""A hardware profile prepared for its page: devices, links, measured collectives, verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

from service.page.views.bandwidth_chart import Series, chart
from shardwise.hardware import Hardware, hardware_from_document
from shardwise.hardware.bandwidth import OPERATIONS, algorithm_bandwidth, bus_bandwidth
from shardwise.hardware.hardware import CollectiveTable
from shardwise.hardware.verdict import verdict

MOST_SHAPES, MOST_SIZES = 16, 64
"""Tables of an operation, and sizes of a table, that a page shows; the document has all."""


def profile_context(document: dict[str, Any]) -> dict[str, Any]:
    """Returns the template's data from a `shardwise.hardware/1` document."""
    hardware = hardware_from_document(document)
    tables = [table for table in hardware.collectives if _is_sound(table)]
    groups = {
        operation: [table for table in tables if table.operation == operation]
        for operation in OPERATIONS
    }
    return {
        "hardware": hardware,
        "id": hardware.id,
        "facts": _facts(hardware),
        "left_out": [
            text for text in _several(hardware.measurement.get("left_out")) if isinstance(text, str)
        ],
        "operations": [
            _operation(hardware, operation, shapes[:MOST_SHAPES])
            for operation, shapes in groups.items()
            if shapes
        ],
        "thinned": any(len(shapes) > MOST_SHAPES for shapes in groups.values())
        or any(len(table.sizes_bytes) > MOST_SIZES for table in tables),
        "unsound": len(hardware.collectives) - len(tables),
    }


def _is_sound(table: CollectiveTable) -> bool:
    """Returns True for a known operation on at least two ranks with figures to draw."""
    groups = table.nodes >= 1 and table.ranks_per_node >= 1 and table.size >= 2
    if not groups or table.operation not in OPERATIONS:
        return False
    rates = (algorithm_bandwidth(*pair) for pair in _pairs(table))
    return all(0 < rate < 1e300 and isfinite(rate) for rate in rates)


def _pairs(table: CollectiveTable) -> list[tuple[float, float]]:
    return list(zip(table.sizes_bytes, table.times_s, strict=True))


def _operation(
    hardware: Hardware, operation: str, tables: Sequence[CollectiveTable]
) -> dict[str, Any]:
    """Returns a chart, verdicts and figures of one operation's tables."""
    shapes = []
    lines = []
    for table in tables:
        name = _shape(table)
        rows = _rows(table)
        lines.append(Series(name, [(row["size_bytes"], row["bus"]) for row in rows]))
        shapes.append({"name": name, "rows": rows, "verdict": verdict(hardware, table)})
    return {"name": operation, "shapes": shapes, "chart": chart(lines)}


def _rows(table: CollectiveTable) -> list[dict[str, Any]]:
    step = -(-len(table.sizes_bytes) // MOST_SIZES)
    rows = []
    for i, (size_bytes, time_s) in enumerate(_pairs(table)):
        if i % step == 0:
            rows.append(
                {
                    "size_bytes": size_bytes,
                    "time_s": time_s,
                    "p10_s": table.p10_s[i] if table.p10_s else None,
                    "p90_s": table.p90_s[i] if table.p90_s else None,
                    "algorithm": algorithm_bandwidth(size_bytes, time_s),
                    "bus": bus_bandwidth(table.operation, table.size, size_bytes, time_s),
                }
            )
    return rows


def _shape(table: CollectiveTable) -> str:
    """Returns the group in words: `2 nodes × 4 ranks, strided, 4 groups at once`."""
    if table.nodes == 1:
        text = f"{table.ranks_per_node} ranks of a node"
    else:
        ranks = f"{table.ranks_per_node} rank{'s' if table.ranks_per_node > 1 else ''}"
        text = f"{table.nodes} nodes × {ranks}"
    text += "" if table.consecutive else ", strided"
    if table.groups:
        text += f", {' and '.join(dict.fromkeys(table.groups))}"
    if table.siblings is not None and table.siblings > 1:
        text += f", {table.siblings} groups at once"
    return text + (f" (derived: {table.derived})" if table.derived else "")


def _facts(hardware: Hardware) -> list[tuple[str, str]]:
    """Returns when, where and how a profile was measured, by name and value."""
    facts = []
    for name, value in hardware.measurement.items():
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            facts.append((name.replace("_", " ")[:60], str(value)[:200]))
    return facts


def _several(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()
