"""Layouts: what every mesh axis does to one tensor.

A layout is a row of int8, one number per mesh axis: a tensor dimension that the axis splits,
`REPLICATE`, or `PARTIAL` (every rank holds a term of the sum). A dimension split by several
axes is split by them in mesh order, outermost axis first. Functions here work on many layouts
at once, shape (K, axes).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

REPLICATE = -1
PARTIAL = -2

Layouts = NDArray[np.int8]
Floats = NDArray[np.float64]

_BASE = 16


def encode(layouts: Layouts) -> NDArray[np.int64]:
    """Returns one number per layout; equal numbers mean equal layouts. Shape (K,)."""
    weights = _BASE ** np.arange(layouts.shape[1], dtype=np.int64)
    return (layouts.astype(np.int64) + 2) @ weights


def local_elements(shape: tuple[int, ...], layouts: Layouts, sizes: NDArray[np.int64]) -> Floats:
    """Returns elements of the largest shard under each layout: uneven shards count as their
    ceiling."""
    count = np.ones(layouts.shape[0])
    for dim, extent in enumerate(shape):
        parts = np.where(layouts == dim, sizes, 1).prod(axis=1)
        count *= np.ceil(extent / parts)
    return count


def local_extents(shape: tuple[int, ...], layouts: Layouts, sizes: NDArray[np.int64]) -> Floats:
    """Returns the shape of the largest shard under each layout, (K, dimensions)."""
    extents = np.empty((layouts.shape[0], len(shape)))
    for dim, extent in enumerate(shape):
        extents[:, dim] = np.ceil(extent / np.where(layouts == dim, sizes, 1).prod(axis=1))
    return extents


def shard_fits(extent: int, parts: int) -> bool:
    """Returns whether `parts` shards of ceil(extent / parts) cover a dimension, none empty."""
    return parts <= extent and (parts - 1) * -(-extent // parts) < extent


def describe(layout: NDArray[np.int8] | tuple[int, ...], names: tuple[str, ...]) -> list[str]:
    """Returns the file form of a layout, one word per axis: `replicate`, `partial`, `shard(0)`."""
    words = {REPLICATE: "replicate", PARTIAL: "partial"}
    return [words.get(int(state), f"shard({int(state)})") for state in layout]
