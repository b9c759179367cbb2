"""Data that blocks send each other when the shares of a tensor change."""

from __future__ import annotations

import numpy as np

from shardwise.cost.mixed.proportions import Proportion, cut, offsets
from shardwise.sharding.layout import PARTIAL, REPLICATE, Floats


def flows_between(own: Proportion, other: Proportion, extent: int) -> Floats:
    """Returns which shares of a tensor go from block to block where one proportion becomes another,
    (blocks, blocks); `extent` is that of the dimension that the
    blocks share, or `REPLICATE` or `PARTIAL`."""
    count = len(own.weights)
    flows = np.zeros((count, count))
    if extent == PARTIAL:
        return flows_between(other, own, REPLICATE).T
    if extent == REPLICATE:
        new = [i for i in other.support if i not in own.support]
        for number, block in enumerate(new):
            flows[own.support[number % len(own.support)], block] = 1.0
        return flows
    here, there = (offsets(cut(extent, one.weights)) for one in (own, other))
    for i in range(count):
        for j in range(count):
            if i != j:
                overlap = min(here[i + 1], there[j + 1]) - max(here[i], there[j])
                flows[i, j] = max(overlap, 0) / extent
    return flows
