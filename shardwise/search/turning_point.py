"""The turning point of a frontier (TensorOpt §5.1).

Below it time rises quickly as memory shrinks, above it more memory buys little. It is the point
farthest below the straight line between the frontier's two ends, both costs scaled to [0, 1]
(the knee of Satopaa et al. 2011, "Finding a Kneedle in a Haystack").
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shardwise.search.gaps import unbeaten


def turning_point(memory_bytes: NDArray[np.float64], time_s: NDArray[np.float64]) -> int | None:
    """Returns the index of the turning point.

    None for an empty frontier, 0 for fewer than three points.
    """
    if len(memory_bytes) == 0:
        return None
    if len(memory_bytes) < 3:
        return 0
    m = (memory_bytes - memory_bytes[0]) / (memory_bytes[-1] - memory_bytes[0])
    t = (time_s - time_s[-1]) / (time_s[0] - time_s[-1])
    return int(np.argmax(1.0 - m - t))


def picked(objective: str, memory_bytes: NDArray[np.float64], time_s: NDArray[np.float64]) -> int:
    """Returns which of some points, one at least and in any order, an objective picks of their
    frontier: `mini-memory` the lowest memory, any other the turning point."""
    kept = unbeaten(memory_bytes, time_s)
    place = 0 if objective == "mini-memory" else turning_point(memory_bytes[kept], time_s[kept])
    return int(kept[place or 0])
