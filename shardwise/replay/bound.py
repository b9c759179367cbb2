"""Lower bounds on the replayed time that hold for every strategy: weights of tasks.

The durations along a longest path of the step program
(`solver/frontier/src/replay/longest_path.rs`) add up to at most the replayed time, under every
strategy. With more than three micro-batches the middle one is repeated, and a repetition takes at
least the longest path between its marks. With contention (`overlap.py`) the step is h times the
replayed time plus 1 - h times the busy time of both streams. So with weights w of tasks

    sum over tasks t of w_t p_t(s) <= D(s) for every strategy s

and means of such weights are such weights. The step takes a soft maximum of D and of the host's
time H, of which the slopes (a, b) at any point give (`hardware/host.py`)

    a sum over tasks t of w_t p_t(s) + b H(s) <= T(s) for every strategy s

H is one more column after those of the tasks: durations have the shape (P, tasks + 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shardwise.hardware.host import soft_maximum, supporting_weights
from shardwise.replay.owner_costs import Choices
from shardwise.replay.replay import Replayer
from shardwise.sharding.layout import Floats


@dataclass(frozen=True)
class Paths:
    """The longest paths of P strategies: lengths, (P,) seconds, and weights (P, tasks + 1).

    `once` are the tasks of a path through the written step, `again` those through the repeated
    micro-batch (0 without one), both times a. Both have two more columns, in `once` the slopes a
    and b, in `again` 0.
    """

    length_s: Floats
    weights: Floats
    once: Floats
    again: Floats


def with_host(durations_s: Floats, host_s: Floats) -> Floats:
    """Returns the durations of P strategies with the host's time as last column:
    (P, tasks + 1)."""
    return np.column_stack([durations_s, host_s])


class StepBound:
    """Longest paths of a replayer's program."""

    def __init__(self, replayer: Replayer) -> None:
        self._replayer = replayer

    @cached_property
    def often(self) -> Floats:
        """The number of times that each written task runs in a step, shape (tasks,)."""
        replayer = self._replayer
        often = np.ones(replayer.tasks)
        if replayer.repeat is not None:
            stretch = replayer.repeat.tasks
            often[stretch.start : stretch.stop] += replayer.repeat.times
        return often

    def durations(self, durations_s: Floats, choices: Choices, edge_choices: Choices) -> Floats:
        """Returns the task durations of P strategies."""
        return durations_s

    def longest(self, durations_s: Floats) -> Paths:
        """Returns the longest paths of P strategies, durations (P, tasks + 1)."""
        replayer = self._replayer
        durations_s, host_s = np.ascontiguousarray(durations_s[:, :-1]), durations_s[:, -1]
        _, members = replayer.program.longest_paths(durations_s)
        once, again = members.astype(np.float64), np.zeros(members.shape)
        if replayer.repeat is not None:
            marks = (replayer.repeat.begins, replayer.repeat.ends)
            _, between = replayer.program.longest_paths(durations_s, between=marks)
            again = between.astype(np.float64)
        device_s = (self._of_tasks(once, again, np.ones((len(once), 1))) * durations_s).sum(axis=1)
        device, host = supporting_weights(device_s, host_s)
        nothing = np.zeros((len(once), 2))
        slopes = np.stack([device, host], axis=1)
        once = np.concatenate([device[:, None] * once, slopes], axis=1)
        again = np.concatenate([device[:, None] * again, nothing], axis=1)
        return Paths(soft_maximum(device_s, host_s), self.weights(once, again), once, again)

    def weights(self, once: Floats, again: Floats) -> Floats:
        """Returns the weights of paths, or of means of them, in this step: (…, tasks + 1).

        Paths of another number of micro-batches of the same program are paths of this one.
        """
        device, host = once[..., -2:-1], once[..., -1:]
        tasks = self._of_tasks(once[..., :-2], again[..., :-2], device)
        return np.concatenate([tasks, host], axis=-1)

    def sums(self) -> Floats:
        """Returns the weights of the search by sums: (tasks + 1,)."""
        return np.append(self.often, 0.0)

    def _of_tasks(self, once: Floats, again: Floats, share: Floats) -> Floats:
        """Returns the weights of tasks on paths that count `share` times."""
        replayer = self._replayer
        weights = once
        if replayer.repeat is not None:
            weights = once + replayer.repeat.times * again
        if replayer.overlap is not None:
            hidden = replayer.overlap.hidden_fraction
            weights = hidden * weights + (1.0 - hidden) * share * self.often
        return np.asarray(weights)
