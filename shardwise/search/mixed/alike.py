"""Candidates for several kinds from a search of one: all devices as slow as the slowest."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from shardwise.cost.assemble import SearchProblem
from shardwise.cost.gradient_sums import COLLECTIVE
from shardwise.cost.group_costs import GroupCosts
from shardwise.cost.mixed.assemble import MixedProblem
from shardwise.cost.mixed.cluster import BLOCKS, mesh_of_blocks, mesh_over
from shardwise.cost.space import EVEN, SearchMesh
from shardwise.hardware import Blocks, Hardware, JointLinks, Mesh, MeshAxis
from shardwise.search.improve import Choices


def slowest_hardware(blocks: Blocks) -> Hardware:
    """Returns a profile whose blocks are all as slow as the slowest of a cluster.

    The kind is that of the least peak speed; memory and links are the minimum over all. Blocks of
    one node share its card.
    """
    whole = blocks.hardware
    names = [name for name, _ in blocks.bundle.counts]
    views = [whole.of_group(name) for name in names]
    slow = min(views, key=lambda view: view.devices[0].peak("float32"))
    least_bytes = min(view.devices[0].memory_bytes for view in views)
    device = replace(slow.devices[0], memory_bytes=least_bytes, count=blocks.size)
    links = JointLinks(blocks)
    numbers = range(len(blocks.blocks))
    nodes = [links.node(number) for number in numbers]
    cards = [
        min((links.bandwidth(a, b) for b in numbers if b != a), default=links.bandwidth(a, a))
        / nodes.count(nodes[a])
        for a in numbers
    ]
    levels = links.slowest_levels(numbers, cards, blocks.size, len(blocks.blocks))
    return replace(
        slow, name=f"{whole.name}/slowest", devices=(device,), levels=levels, collectives=()
    )


def mesh_of_alike(blocks: Blocks, count: int, most: int) -> Mesh:
    """Returns the mesh of `count` blocks of one kind, each a node.

    Axes inside a block are merged as in a search of all blocks with `most` configurations, so that
    strategies have the same axes.
    """
    inner = SearchMesh.build(mesh_of_blocks(blocks), most).axes[BLOCKS + 1 :]
    axes = tuple(MeshAxis(f"m{i}", axis.size, axis.level) for i, axis in enumerate(inner))
    mesh = mesh_over(blocks.size, count, count)
    return replace(mesh, axes=mesh.axes[: BLOCKS + 1] + axes if count > 1 else axes)


@dataclass(frozen=True)
class Mapped:
    """Rows of a problem of several kinds (groups,); for `nearest` groups the exact row is
    missing."""

    choices: Choices
    nearest: int


def mapped_rows(
    problem: SearchProblem, choices: Choices, mixed: MixedProblem, proportion: int = EVEN
) -> Mapped:
    """Returns the rows of a proportion with the same, or else the nearest, configurations.

    A problem of one block alone has no axis over blocks.
    """
    rows, nearest = [], 0
    for own, row, cost in zip(problem.costs, choices.tolist(), mixed.costs, strict=True):
        found, same = _row_like(own, row, cost, proportion)
        rows.append(found)
        nearest += not same
    return Mapped(np.array(rows, dtype=np.uint32), nearest)


def _row_like(own: GroupCosts, row: int, cost: GroupCosts, proportion: int) -> tuple[int, bool]:
    missing = cost.assignment.shape[1] - own.assignment.shape[1]
    axes = int(own.zero_axes[row]) << missing
    known = cost.zero_axes >> missing << missing
    differs: list[NDArray[np.int64]] = [
        np.abs(known - axes).astype(np.int64),
        np.abs(cost.zero.astype(np.int64) - int(own.zero[row])),
        (cost.recompute != own.recompute[row]).astype(np.int64),
        (cost.gradient_sum != COLLECTIVE).astype(np.int64),
        (cost.assignment[:, missing:] != own.assignment[row]).sum(axis=1).astype(np.int64),
        (cost.proportion != proportion).astype(np.int64),
    ]
    best = int(np.lexsort((cost.time_s, *differs))[0])
    return best, all(of[best] == 0 for of in differs)
