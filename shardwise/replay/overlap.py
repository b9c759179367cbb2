"""Replayed times with contention: both streams at once are slower than each alone.

Replay runs the streams side by side at full speed. Of a second in which both ran, a measured
profile says how much was really hidden (`Overlap.hidden_fraction`, h); the rest comes on top:

    time' = time + (1 - h) · (compute + communication - time)

Between the replayed time (h = 1) and the sum of both streams (h = 0). A profile without a
measurement of overlap leaves the time as it is.
"""

from __future__ import annotations

import numpy as np

from shardwise.hardware import Overlap
from shardwise.sharding.layout import Floats


def contended_time(
    time_s: Floats, compute_s: Floats, communication_s: Floats, overlap: Overlap | None
) -> Floats:
    """Returns seconds, shape (P,) like the three: replayed, and how long each stream was busy."""
    if overlap is None:
        return time_s
    together = np.maximum(compute_s + communication_s - time_s, 0.0)
    return np.asarray(time_s + (1.0 - overlap.hidden_fraction) * together)
