"""What communication times are based on: measured tables, ones derived from them, or a model.

The shares count what a mesh can ask for: each operation on each group shape that its axes span.
They are shares of shapes, not of a strategy's time.
"""

from __future__ import annotations

from itertools import combinations

from shardwise.hardware import OPERATIONS, Hardware, Mesh
from shardwise.hardware.collectives import find_table

MODELLED = "modelled from data sheets"
MEASURED = "measured tables"


def communication_shares(hardware: Hardware, mesh: Mesh) -> dict[str, float]:
    """Returns the shares `measured`, `derived` and `modelled`; they add up to 1."""
    axes = range(len(mesh.axes))
    shapes = {
        mesh.group_shape(chosen)
        for count in range(1, len(mesh.axes) + 1)
        for chosen in combinations(axes, count)
    }
    counts = {"measured": 0, "derived": 0, "modelled": 0}
    for shape in shapes:
        for operation in OPERATIONS:
            table = find_table(hardware, operation, shape)
            basis = "modelled" if table is None else "derived" if table.derived else "measured"
            counts[basis] += 1
    total = sum(counts.values())
    if not total:
        return {"measured": 1.0, "derived": 0.0, "modelled": 0.0}
    return {basis: count / total for basis, count in counts.items()}


def communication_basis(hardware: Hardware, mesh: Mesh) -> str:
    """Returns the shares in words; a group of one needs no communication."""
    if not hardware.collectives:
        return MODELLED
    shares = communication_shares(hardware, mesh)
    if shares["measured"] == 1.0:
        return MEASURED
    parts = [
        f"{share:.0%} {basis}"
        for basis, share in (
            ("derived from them", shares["derived"]),
            (MODELLED, shares["modelled"]),
        )
        if share
    ]
    return f"{MEASURED} for {shares['measured']:.0%} of the group shapes, {', '.join(parts)}"
