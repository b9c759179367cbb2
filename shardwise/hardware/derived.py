"""Tables of group shapes that were not measured, derived from ones that were by stated rules.

1. Inside one node the bus bandwidth of an operation at a size is that of another group:
   t(size) = t'(size) · f(n) / f(n'), f as in `bandwidth.py`. The group taken is, in this order, one
   of as many ranks, the next larger one, the largest smaller one.
2. Over N nodes with r ranks each, hierarchical composition from groups inside a node (in, of r)
   and groups of one rank per node (across, of N); likewise over N racks, with r ranks in each:

       all_reduce        reduce_scatter_in(size) + all_reduce_across(size / r) + all_gather_in(size)
       reduce_scatter    reduce_scatter_in(size) + reduce_scatter_across(size / r)
       all_gather        all_gather_across(size / r) + all_gather_in(size)
       broadcast         broadcast_across(size) + broadcast_in(size)
       all_to_all        all_to_all_in(size) + all_to_all_across(size)
       send_receive      the slower of in and across

   The groups inside may come from either rule; those across must have been measured, with at least
   as many sharing a node's card as would here.

What no rule gives is modelled. A derived table says by which rule and from what.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from weakref import finalize

import numpy as np

from shardwise.hardware.bandwidth import bus_factor
from shardwise.hardware.grid import Floats
from shardwise.hardware.hardware import CollectiveTable, Hardware, TableKey
from shardwise.hardware.levels import trimmed
from shardwise.hardware.mesh import GroupShape

Parts = tuple[tuple[str, str, bool], ...]

COMPOSED: dict[str, Parts] = {
    "all_reduce": (
        ("in", "reduce_scatter", False),
        ("across", "all_reduce", True),
        ("in", "all_gather", False),
    ),
    "reduce_scatter": (("in", "reduce_scatter", False), ("across", "reduce_scatter", True)),
    "all_gather": (("across", "all_gather", True), ("in", "all_gather", False)),
    "broadcast": (("across", "broadcast", False), ("in", "broadcast", False)),
    "all_to_all": (("in", "all_to_all", False), ("across", "all_to_all", False)),
    "send_receive": (("in", "send_receive", False), ("across", "send_receive", False)),
}
"""Per operation its parts: where, which operation, whether on an r-th of the size."""

_known: dict[int, dict[TableKey, CollectiveTable | None]] = {}
"""Derived tables by the `id` of their profile: profiles are immutable, but have no hash."""


def derived_table(hardware: Hardware, operation: str, shape: GroupShape) -> CollectiveTable | None:
    """Returns the table of a shape that has none, None where no rule applies; computed once."""
    key = (operation, shape.counts, shape.consecutive)
    known = _known_of(hardware)
    if key not in known:
        if len(shape.counts) == 1:
            known[key] = _same_bus_bandwidth(hardware, operation, shape.size, shape.consecutive)
        else:
            known[key] = _composed(hardware, operation, shape)
    return known[key]


def _known_of(hardware: Hardware) -> dict[TableKey, CollectiveTable | None]:
    """Returns what has been computed for a profile; it is dropped with the profile."""
    identity = id(hardware)
    if identity not in _known:
        _known[identity] = {}
        finalize(hardware, _known.pop, identity, None).atexit = False
    return _known[identity]


def interpolate(table: CollectiveTable, sizes_bytes: Floats, times_s: Floats) -> Floats:
    """Returns `times_s` at other sizes: log-log, above the table's largest size its bandwidth."""
    sizes = np.array(table.sizes_bytes)
    wanted = np.maximum(sizes_bytes, 1.0)
    inside = np.exp(np.interp(np.log(wanted), np.log(sizes), np.log(times_s)))
    beyond = sizes_bytes / (sizes[-1] / times_s[-1])
    return np.asarray(np.where(sizes_bytes > sizes[-1], beyond, inside))


def _same_bus_bandwidth(
    hardware: Hardware, operation: str, ranks: int, consecutive: bool
) -> CollectiveTable | None:
    """Applies rule 1; a measured table of this very shape is returned as it is."""
    measured = hardware.tables.get((operation, (ranks,), consecutive))
    if measured is not None:
        return measured
    others = [
        table
        for (known, counts, _), table in hardware.tables.items()
        if known == operation and len(counts) == 1
    ]
    if not others:
        return None

    def distance(table: CollectiveTable) -> tuple[int, int, bool]:
        step = table.size - ranks
        return (0 if step == 0 else 1 if step > 0 else 2, abs(step), table.consecutive is False)

    nearest = min(others, key=distance)
    factor = bus_factor(operation, ranks) / bus_factor(operation, nearest.size)
    how = "consecutive" if nearest.consecutive else "strided"
    return replace(
        nearest,
        nodes=1,
        ranks_per_node=ranks,
        ranks_by_level=(),
        consecutive=consecutive,
        times_s=_scaled(nearest.times_s, factor),
        p10_s=_scaled(nearest.p10_s, factor),
        p90_s=_scaled(nearest.p90_s, factor),
        repeats=(),
        derived=f"the bus bandwidth of {nearest.size} ranks, {how}",
    )


def _composed(hardware: Hardware, operation: str, shape: GroupShape) -> CollectiveTable | None:
    """Applies rule 2 at the outermost level that the group crosses."""
    *inner, outermost = shape.counts
    r = prod(inner)
    if r == 1 or r * outermost != shape.size:
        return None
    sharing = shape.ranks_per_node * shape.siblings_per_node
    tables = []
    for where, part, _ in COMPOSED[operation]:
        if where == "in":
            table = _inside(hardware, part, tuple(inner), shape)
        else:
            table = hardware.tables.get((part, (*(1 for _ in inner), outermost), False))
            if table and table.siblings and table.siblings < sharing:
                table = None
        if table is None:
            return None
        tables.append(table)
    sizes = np.array(tables[0].sizes_bytes)
    parts = [
        interpolate(table, sizes / r if divided else sizes, np.array(table.times_s))
        for table, (_, _, divided) in zip(tables, COMPOSED[operation], strict=True)
    ]
    where_inside = "inside a node" if len(inner) == 1 else "inside a unit"
    times = np.maximum(*parts) if operation == "send_receive" else np.sum(parts, axis=0)
    return CollectiveTable(
        operation,
        shape.nodes,
        shape.ranks_per_node,
        shape.consecutive,
        tuple(sizes.tolist()),
        tuple(times.tolist()),
        siblings=shape.siblings_per_node,
        derived=f"composed of groups of {r} {where_inside} and of {outermost} across",
        ranks_by_level=shape.counts if len(inner) > 1 else (),
    )


def _inside(
    hardware: Hardware, operation: str, counts: tuple[int, ...], shape: GroupShape
) -> CollectiveTable | None:
    """Returns the table of the part of a group that is in one unit of the level below the
    outermost that it crosses."""
    counts = trimmed(counts)
    if len(counts) == 1:
        return _same_bus_bandwidth(hardware, operation, counts[0], True)
    part = replace(
        shape,
        size=prod(counts),
        nodes=prod(counts[1:]),
        levels=tuple(
            replace(level, units=prod(counts[i + 1 :]))
            for i, level in enumerate(shape.levels[: len(counts)])
        ),
        consecutive=counts[0] > 1,
    )
    measured = hardware.tables.get((operation, counts, part.consecutive))
    return measured or derived_table(hardware, operation, part)


def _scaled(times_s: tuple[float, ...], factor: float) -> tuple[float, ...]:
    return tuple(time * factor for time in times_s)
