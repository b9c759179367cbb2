"""Layouts: what every mesh axis does to one tensor.

A layout is a row of int8, one number per mesh axis: a tensor dimension that the axis splits,
`REPLICATE`, or `PARTIAL` (every rank holds a term of the sum). A dimension split by several
axes is split by them in mesh order, outermost axis first. Functions here work on many layouts
at once, shape (K, axes).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shardwise.graph.graph import Spread

REPLICATE = -1
PARTIAL = -2

Layouts = NDArray[np.int8]
Floats = NDArray[np.float64]

_BASE = 16


def encode(layouts: Layouts) -> NDArray[np.int64]:
    """Returns one number per layout; equal numbers mean equal layouts. Shape (K,)."""
    weights = _BASE ** np.arange(layouts.shape[1], dtype=np.int64)
    return (layouts.astype(np.int64) + 2) @ weights


def shard_of(extent: float | Floats, parts: Floats | NDArray[np.int64]) -> Floats:
    """Returns the largest of `parts` shards of a dimension, its ceiling where they are uneven.

    Parts are no whole number where devices take uneven shares (a device with a third of what all
    have is one of 3 parts, whatever the others take), and infinite where a device has none.
    """
    return np.asarray(np.ceil(extent / parts * _ROUNDING))


def part_of(extent: float | Floats, parts: Floats | NDArray[np.int64]) -> Floats:
    """Returns by what a dimension multiplies the elements of the largest of `parts` shards: its own
    extent there, or the fraction of rows where it is a spread."""
    share = shard_of(extent, parts)
    if not isinstance(extent, Spread):
        return share
    return np.minimum(share / int(extent) * np.where(parts == 1, 1.0, extent.imbalance), 1.0)


def fraction_of(extent: float, parts: Floats | NDArray[np.int64]) -> Floats:
    """Returns the fraction of an index variable that the largest of `parts` shares has."""
    part = part_of(extent, parts)
    return part if isinstance(extent, Spread) else part / extent


_ROUNDING = 1.0 - 1e-12
"""Below one by more than the error of a quotient, and by less than any remainder."""


def local_elements(
    shape: tuple[int, ...], layouts: Layouts, sizes: NDArray[np.int64] | Floats
) -> Floats:
    """Returns elements of the largest shard under each layout: uneven shards count as their
    ceiling.

    `sizes` are those of the axes, (axes,) or under each layout (K, axes).
    """
    count = np.ones(layouts.shape[0])
    for dim, extent in enumerate(shape):
        count *= part_of(extent, np.where(layouts == dim, sizes, 1).prod(axis=1))
    return count


def local_extents(
    shape: tuple[int, ...], layouts: Layouts, sizes: NDArray[np.int64] | Floats
) -> Floats:
    """Returns the shape of the largest shard under each layout, (K, dimensions); `sizes` as in
    `local_elements`. Of a spread it is the fraction of rows."""
    extents = np.empty((layouts.shape[0], len(shape)))
    for dim, extent in enumerate(shape):
        extents[:, dim] = part_of(extent, np.where(layouts == dim, sizes, 1).prod(axis=1))
    return extents


def shard_fits(extent: int, parts: int) -> bool:
    """Returns whether `parts` shards of ceil(extent / parts) cover a dimension, none empty."""
    return parts <= extent and (parts - 1) * -(-extent // parts) < extent


def describe(layout: NDArray[np.int8] | tuple[int, ...], names: tuple[str, ...]) -> list[str]:
    """Returns the file form of a layout, one word per axis: `replicate`, `partial`, `shard(0)`."""
    words = {REPLICATE: "replicate", PARTIAL: "partial"}
    return [words.get(int(state), f"shard({int(state)})") for state in layout]
