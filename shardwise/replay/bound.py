"""Lower bounds on the replayed time that hold for every strategy: weights of tasks.

A longest path of the step program (`solver/frontier/src/replay/longest_path.rs`) is a set of tasks
of which the durations add up to at most the replayed time, whatever the strategy. Of more than
three micro-batches the middle one is repeated, and a repetition takes at least the longest path
between its marks; with contention (`overlap.py`) the step takes h times the replayed time and
1 - h times all that both streams do. So with weights w of tasks

    sum over tasks t of w_t p_t(s) <= T(s) for every strategy s

and means of such weights are such weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shardwise.replay.replay import Replayer
from shardwise.sharding.layout import Floats


@dataclass(frozen=True)
class Paths:
    """Of P strategies: the length of the longest path, (P,) seconds, and its weights (P, tasks).

    `once` are the tasks of a path through what is written, `again` those of one through what is
    repeated; where nothing is, `again` is 0.
    """

    length_s: Floats
    weights: Floats
    once: Floats
    again: Floats


class StepBound:
    """Longest paths of a replayer's program."""

    def __init__(self, replayer: Replayer) -> None:
        self._replayer = replayer

    @cached_property
    def often(self) -> Floats:
        """How often each written task happens in a step, shape (tasks,)."""
        replayer = self._replayer
        often = np.ones(replayer.tasks)
        if replayer.repeat is not None:
            stretch = replayer.repeat.tasks
            often[stretch.start : stretch.stop] += replayer.repeat.times
        return often

    def longest(self, durations_s: Floats) -> Paths:
        """Returns the longest paths of P strategies, durations (P, tasks)."""
        replayer = self._replayer
        _, members = replayer.program.longest_paths(durations_s)
        once, again = members.astype(np.float64), np.zeros(members.shape)
        if replayer.repeat is not None:
            marks = (replayer.repeat.begins, replayer.repeat.ends)
            _, between = replayer.program.longest_paths(durations_s, between=marks)
            again = between.astype(np.float64)
        weights = self.weights(once, again)
        return Paths((weights * durations_s).sum(axis=1), weights, once, again)

    def weights(self, once: Floats, again: Floats) -> Floats:
        """Returns the weights of paths (…, tasks), or of means of them, in this step.

        Paths of another number of micro-batches of the same program are paths of this one.
        """
        replayer = self._replayer
        weights = once
        if replayer.repeat is not None:
            weights = once + replayer.repeat.times * again
        if replayer.overlap is not None:
            hidden = replayer.overlap.hidden_fraction
            weights = hidden * weights + (1.0 - hidden) * self.often
        return np.asarray(weights)
