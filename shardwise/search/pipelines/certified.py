"""Proofs for the points of a frontier of pipelines: a lower bound on the step within each peak.

A bound within a limit is a line over limits: at a given price of memory, ranges are charged C, and
take at least C - price x limit under any limit (`ranges.py`). So the prices found for one point
bound all points. A point's bound is the weakest over numbers of stages and micro-batches; only that
one looks for new prices, for the point furthest above its bound.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardwise.cost.options import Progress, go_on
from shardwise.search.pipelines.staged import Staged
from shardwise.sharding.layout import Floats

ASKED = 2
"""Maximum number of price searches, per number of stages and micro-batches."""


def least_within(
    searched: Sequence[Staged],
    peaks_bytes: Floats,
    steps_s: Floats,
    epsilon: float,
    progress: Progress,
) -> Floats:
    """Returns a lower bound on every queried pipeline within each point's peak, (points,), by
    ascending peak. Bounds are improved until steps are within `epsilon`.

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
    """Returns the lower bound of one query at each point."""
    least_s = staged.question.least_s
    if least_s < near_s.max():
        least_s = max(least_s, staged.least_s())
    return np.full(len(near_s), least_s)
