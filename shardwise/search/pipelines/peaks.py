"""The memory of a pipeline's devices at every moment.

While part k of a pass of stage s runs, a device of its rank holds

    what is there throughout + the gradients of its stages that there are
    + (P_sk - what is there throughout of s - what the micro-batch of s holds)
    + sum over its stages of [ kept x (K + x_in) + waiting x V + before x x_in + behind x x_out ]

with P_sk the replayed peak of that part in such a pass, one micro-batch at a time, with the
gradients that there are of s; K what a kept micro-batch takes beside the tensors that came in, V
what one holds that waits for W, and x what crosses the cuts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shardwise.pipeline.keeping import FIRST, WEIGHTS, Moments
from shardwise.replay.stages import ReplayedStages
from shardwise.sharding.layout import Floats


class RankPeaks:
    """The memory of a device of a rank with the stages `own`; `incoming_bytes` (stages + 1,) is
    what one micro-batch brings over the cut before each stage, and behind the last."""

    def __init__(
        self,
        rank: int,
        own: Sequence[int],
        replayed: ReplayedStages,
        incoming_bytes: Sequence[float],
    ) -> None:
        stages = list(own)
        parts = replayed.parts.take(np.array(stages))
        self._whole = replayed.of_ranks.take(np.array([rank]))
        self._before = np.array([incoming_bytes[stage] for stage in stages])
        self._behind = np.array([incoming_bytes[stage + 1] for stage in stages])
        self._parts, self._further = parts, parts.kept_bytes + self._before
        # The replayed stage's memory for the micro-batch that runs.
        own_bytes = np.repeat(parts.kept_bytes[:, None], 3, axis=1)
        own_bytes[:, WEIGHTS] = parts.own_waiting_bytes
        self._running = parts.peak_bytes - (parts.start_bytes[:, None] + own_bytes)[..., None]

    def at(self, moments: Moments) -> Floats:
        """Returns the peak of each moment, (moments,)."""
        held = self._running[moments.place, moments.part, moments.turn]
        held = held + float(self._whole.start_bytes[0]) + self._gradients(moments)
        held = held + self.micro_batches(moments).sum(axis=1)
        return np.asarray(held + moments.before @ self._before + moments.behind @ self._behind)

    def micro_batches(self, moments: Moments) -> Floats:
        """Returns the bytes of kept and waiting micro-batches in each stage, (moments, v)."""
        waiting = moments.waiting * self._parts.waiting_bytes
        return np.asarray(moments.kept * self._further + waiting)

    def _gradients(self, moments: Moments) -> Floats:
        """Returns the gradients other than the running pass's; a parameter of several stages counts
        once."""
        of_backward, of_weights = self._parts.gradient_bytes.T
        others = moments.gradients @ of_backward + moments.weights_gradients @ of_weights
        own: NDArray[np.float64] = (of_backward + of_weights)[moments.place]
        most = float(self._whole.gradient_bytes.sum()) - np.where(moments.turn == FIRST, 0.0, own)
        return np.asarray(np.minimum(others, np.maximum(most, 0.0)))

    @property
    def update_bytes(self) -> float:
        """The peak of the update."""
        return float(self._whole.update_bytes[0])
