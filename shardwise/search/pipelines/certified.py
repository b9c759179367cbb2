"""What is proven of the points of a frontier of pipelines: each has a least step within its peak.

A bound within a limit is a line of the limit: with a price on memory, ranges are charged C, and
take no less than C - price x limit under any other limit too (`ranges.py`). So the prices that one
point finds bound all points. A point is bounded by the weakest of the numbers of stages and of
micro-batches: that one alone asks for prices, for the point that is furthest above what is known.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardwise.cost.options import Progress, go_on
from shardwise.search.pipelines.staged import Staged
from shardwise.sharding.layout import Floats

ASKED = 2
"""How many points ask for prices, times the numbers of stages and micro-batches."""


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
    if not len(steps_s) or not searched:
        return np.full(len(steps_s), np.inf)
    bounds = np.array([_free(staged, near_s) for staged in searched])
    asked = np.zeros(bounds.shape, dtype=bool)
    points, most = np.arange(len(steps_s)), ASKED * len(searched)
    for number in range(most):
        go_on(progress, "pipelines", number / most)
        weakest = bounds.argmin(axis=0)
        lacks = near_s / bounds[weakest, points]
        lacks[asked[weakest, points]] = 0.0
        point = int(lacks.argmax())
        if lacks[point] <= 1.0:
            break
        at = int(weakest[point])
        asked[at, point] = True
        enough_s = float(near_s[point])
        searched[at].least_within_s(float(peaks_bytes[point]), enough_s=enough_s)
        known = [searched[at].least_within_s(peak, known=True) for peak in peaks_bytes.tolist()]
        # What holds within more memory holds within less.
        known_s = np.maximum.accumulate(known[::-1])[::-1]
        bounds[at] = np.maximum(bounds[at], known_s)
    return np.asarray(bounds.min(axis=0))


def _free(staged: Staged, near_s: Floats) -> Floats:
    """Returns what no pipeline of a question takes less than, at each point."""
    least_s = staged.question.least_s
    if least_s < near_s.max():
        least_s = max(least_s, staged.least_s())
    return np.full(len(near_s), least_s)
