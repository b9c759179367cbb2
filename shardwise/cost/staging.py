"""Temporary memory of re-scheduling, besides the tensor before and after it
(`execute/collectives.py`).

Shares of the outermost dimension lie one after another in memory; those of any other are packed
before they are sent, and put into place when they have come:

    all_gather       the blocks that came, unless of the outermost dimension and all alike
    reduce_scatter   the packed terms, likewise
    all_to_all       what is sent, unless to the outermost; what came, unless from the outermost
    all_reduce, slice, mask    nothing

A path of several steps also holds its intermediate results.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shardwise.sharding.layout import PARTIAL, REPLICATE, Floats, local_extents

Layout = tuple[int, ...]


def staged_elements(
    shape: tuple[int, ...], sizes: NDArray[np.int64], path: Sequence[Layout]
) -> float:
    """Returns the maximum elements that a path holds besides its two ends, on one device.

    `path` are the layouts of a tensor of global `shape` from one collective to the next; `sizes`
    those of the mesh axes.
    """
    extents = local_extents(shape, np.array(path, dtype=np.int8), sizes)
    elements = extents.prod(axis=1)
    most = 0.0
    for step in range(len(path) - 1):
        on_the_way = elements[step] if step else 0.0
        result = elements[step + 1] - elements[-1]
        packed = packed_elements(
            path[step], path[step + 1], extents[step], extents[step + 1], sizes
        )
        most = max(most, on_the_way + result + packed)
    return float(most)


def packed_elements(
    before: Layout, after: Layout, source: Floats, result: Floats, sizes: NDArray[np.int64]
) -> float:
    """Returns elements of the copies that one collective packs or unpacks.

    `source`, `result`: extents of the tensor before and after.
    """
    changed = [axis for axis, state in enumerate(before) if state != after[axis]]
    here, there = before[changed[0]], after[changed[0]]
    parts = sizes[changed].prod()
    if here == REPLICATE or (here == PARTIAL and there == REPLICATE):
        return 0.0
    if there == REPLICATE:
        return 0.0 if _is_outermost(result, here) and result[here] % parts == 0 else result.prod()
    if here == PARTIAL:
        return 0.0 if _is_outermost(source, there) and source[there] % parts == 0 else source.prod()
    sent = 0.0 if _is_outermost(source, there) else source.prod()
    return max(sent, 0.0 if _is_outermost(result, here) else result.prod())


def _is_outermost(extents: Floats, dim: int) -> bool:
    """Returns whether shares of a dimension lie one after another in memory."""
    return bool((extents[:dim] == 1).all())
