"""What is proven of the points of a frontier of pipelines: each has a least step within its peak.

A bound within a limit is a line of the limit: with a price on memory, ranges are charged C, and
take no less than C - price x limit under any other limit too (`ranges.py`). So the prices that one
point finds bound all points, and few points ask for prices of their own: those that are furthest
above what is known.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardwise.cost.options import Progress, go_on
from shardwise.search.pipelines.staged import Staged
from shardwise.sharding.layout import Floats

ASKED = 2
"""How many points ask for prices of their own, for each number of stages and micro-batches."""


def least_within(
    searched: Sequence[Staged],
    peaks_bytes: Floats,
    steps_s: Floats,
    epsilon: float,
    progress: Progress,
) -> Floats:
    """Returns for each point of a frontier, (points,) ascending in peak, what no pipeline that was
    asked for takes less than within its peak. Points are improved until their step is within
    `epsilon` of it.

    Raises `Cancelled`.
    """
    near_s = steps_s / (1.0 + epsilon)
    least_s = np.full(len(steps_s), np.inf)
    for number, staged in enumerate(searched):
        go_on(progress, "pipelines", number / len(searched))
        least_s = np.minimum(least_s, _least_of(staged, peaks_bytes, near_s))
    return least_s


def _least_of(staged: Staged, peaks_bytes: Floats, near_s: Floats) -> Floats:
    """Returns the same of one number of stages and of micro-batches."""
    bounds = np.full(len(near_s), staged.question.least_s)
    if (bounds >= near_s).all():
        return bounds
    bounds = np.maximum(bounds, staged.least_s())
    asked: set[int] = set()
    for _ in range(ASKED):
        lacks = np.where(bounds < near_s, near_s / bounds, 0.0)
        lacks[list(asked)] = 0.0
        most = int(lacks.argmax())
        if not lacks[most]:
            break
        asked.add(most)
        staged.least_within_s(float(peaks_bytes[most]))
        known = [staged.least_within_s(peak, known=True) for peak in peaks_bytes.tolist()]
        # What holds within more memory holds within less.
        bounds = np.maximum(bounds, np.maximum.accumulate(known[::-1])[::-1])
    return np.asarray(bounds)
