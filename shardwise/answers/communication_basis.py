"""Sources of communication times: measured tables, derived ones, or a model.

The shares count the possible collectives on a mesh (each operation on each group shape of its
axes), not a strategy's time.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from math import prod

from shardwise.cost.mixed.cluster import Cluster
from shardwise.hardware import OPERATIONS, CollectiveTable, Hardware, Mesh
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
            counts[_basis(find_table(hardware, operation, shape))] += 1
    return _shares(counts)


def _basis(table: CollectiveTable | None) -> str:
    return "modelled" if table is None else "derived" if table.derived else "measured"


def _shares(counts: Mapping[str, int]) -> dict[str, float]:
    total = sum(counts.values())
    if not total:
        return {"measured": 1.0, "derived": 0.0, "modelled": 0.0}
    return {basis: count / total for basis, count in counts.items()}


def communication_basis(hardware: Hardware, mesh: Mesh) -> str:
    """Returns the shares in words; a group of one needs no communication."""
    if not hardware.collectives:
        return MODELLED
    return _in_words(communication_shares(hardware, mesh))


def joint_communication_basis(cluster: Cluster) -> str:
    """Returns the same for devices of several kinds.

    Counts all operations over the blocks of each proportion and of each block alone, with as many
    ranks per block as its axes span.
    """
    blocks = cluster.blocks
    if not blocks.hardware.collectives:
        return MODELLED
    supports = dict.fromkeys(proportion.support for proportion in cluster.proportions)
    supports |= dict.fromkeys((place.block,) for place in cluster.places)
    axes = [axis.size for axis in cluster.search.axes[1:]]
    spans = {prod(c) for k in range(len(axes) + 1) for c in combinations(axes, k)}
    counts = dict.fromkeys(("measured", "derived", "modelled"), 0)
    for support in supports:
        for ranks in spans:
            for operation in OPERATIONS if len(support) * ranks > 1 else ():
                counts[_basis(cluster.links.table(operation, support, ranks))] += 1
    return _in_words(_shares(counts))


def _in_words(shares: Mapping[str, float]) -> str:
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
