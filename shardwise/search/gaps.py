"""Gaps between a frontier of replayed peaks and times and its proven bounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from shardwise.search.search import Proof
from shardwise.sharding.layout import Floats

NODES = 256
"""Number of memories at which a frontier is compared with its bounds."""


@dataclass(frozen=True)
class Gaps:
    """A frontier's gaps for limits in N memory intervals.

    For an interval that begins at `memory_bytes` (N,): for every limit in it, some point of the
    frontier takes at most 1 + `epsilon` times the memory and time of any strategy within the limit.
    """

    memory_bytes: Floats
    epsilon: Floats

    @classmethod
    def between(cls, proofs: Sequence[Proof], peak_bytes: Floats, time_s: Floats) -> Gaps:
        """Returns the gaps of P points, (P,) each, by the proofs of all searches."""
        kept = unbeaten(peak_bytes, time_s)
        peaks, times = peak_bytes[kept], time_s[kept]
        nodes = np.unique(np.append(np.geomspace(peaks[0], peaks[-1], NODES), peaks))
        nodes = np.append(nodes, inf)
        # No strategy within an interval beats the bound at its end.
        bounds = np.array([[proof.bound_s(float(node)) for node in nodes[1:]] for proof in proofs])
        least = bounds.min(axis=0)
        more = peaks[:, None] / nodes[None, :-1]
        with np.errstate(divide="ignore"):
            slower = times[:, None] / least[None, :]
        epsilon = np.maximum(np.maximum(more, slower).min(axis=0) - 1.0, 0.0)
        return cls(nodes[:-1], epsilon)


def unbeaten(peak_bytes: Floats, time_s: Floats) -> NDArray[np.int64]:
    """Returns the points that none beats in peak and time, by ascending peak."""
    order = np.lexsort((time_s, peak_bytes))
    ahead = np.minimum.accumulate(np.append(inf, time_s[order][:-1]))
    return np.asarray(order[time_s[order] < ahead])
