"""What re-scheduling on several kinds holds besides the tensor before and after it.

Within a proportion as on devices of one kind (`cost/staging.py`), and besides

    uneven shares      travel padded to the largest (`execute/collectives.py`): one of each rank
                       that came or is to go, and one's own
    change of shares   rows that are sent are packed, and gone when those that have come are put
                       together with what stays; of a whole tensor, or a term of a sum, the new part
                       is there before anything is sent (`execute/reshare.py`)
"""

from __future__ import annotations

from math import prod

import numpy as np
from numpy.typing import NDArray

from shardwise.cost.mixed.cluster import BLOCKS, PlaceMesh
from shardwise.cost.mixed.flows import flows_between
from shardwise.cost.mixed.proportions import cut
from shardwise.cost.staging import packed_elements
from shardwise.sharding.layout import REPLICATE, Layouts, local_elements, local_extents

Placed = NDArray[np.int8]
"""A layout, and the number of its proportion."""


def staged_at(mesh: PlaceMesh, place: int, shape: tuple[int, ...], path: Layouts) -> float:
    """Returns the most elements that a path holds besides its two ends on a device of a place,
    whose `mesh` it is.

    `path` are placed layouts of a tensor of global `shape` from one step to the next (K, axes + 1).
    """
    elements = mesh.local_elements(shape, path)
    sizes = mesh.sizes_of(path[:, -1])
    extents = local_extents(shape, path[:, :-1], sizes)
    most = 0.0
    for step in range(len(path) - 1):
        here, there = path[step], path[step + 1]
        on_the_way = elements[step] if step else 0.0
        staged = 0.0
        if here[-1] != there[-1]:
            staged = _by_change(mesh, place, shape, here, there, float(elements[step + 1]))
        elif mesh.present[here[-1]]:
            before, after = (tuple(layout[:-1].tolist()) for layout in (here, there))
            staged = packed_elements(before, after, extents[step], extents[step + 1], sizes[step])
            larger = float(max(elements[step], elements[step + 1]))
            staged = max(staged, _padded(mesh, shape, here, there, larger))
        most = max(most, on_the_way + elements[step + 1] - elements[-1] + staged)
    return float(most)


def _padded(
    mesh: PlaceMesh, shape: tuple[int, ...], here: Placed, there: Placed, whole: float
) -> float:
    """Returns elements of the copies in which uneven shares travel; `whole` is what they are
    together."""
    cluster, before, after = mesh.cluster, int(here[BLOCKS]), int(there[BLOCKS])
    proportion = cluster.proportions[int(here[-1])]
    # all_to_all sends what there is.
    summed_or_gathered = before != after and (before < 0) != (after < 0) and before != REPLICATE
    if proportion.is_even or not summed_or_gathered:
        return 0.0
    shares = cut(shape[max(before, after)], proportion.weights)
    axes = enumerate(cluster.search.axes)
    inside = prod(axis.size for a, axis in axes if a != BLOCKS and here[a] != there[a])
    largest = whole * max(shares) / sum(shares) / inside
    return (len(proportion.support) * inside + 1) * largest


def _by_change(
    mesh: PlaceMesh,
    place: int,
    shape: tuple[int, ...],
    here: Placed,
    there: Placed,
    after: float,
) -> float:
    """Returns elements that a change of shares holds besides both parts; `after` are the new
    part's."""
    cluster, state = mesh.cluster, int(here[BLOCKS])
    block = cluster.places[place].block
    own, other = (cluster.proportions[int(layout[-1])] for layout in (here, there))
    flows = flows_between(own, other, shape[state] if state >= 0 else state)
    bare = here[None, :-1].copy()
    bare[:, BLOCKS] = REPLICATE
    whole = float(local_elements(shape, bare, cluster.search.sizes)[0])
    sent, came = whole * flows[block].sum(), whole * flows[:, block].sum()
    return float(sent + came if state < 0 else max(came, sent + came - after))
