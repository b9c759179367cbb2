"""What every pipeline of some stages and micro-batches takes at least, wherever it is cut.

Stage s cannot begin before a micro-batch has come through the stages before it, nor can these end
before its last gradient has gone back through them. With f and b the seconds of a micro-batch's
forward and backward, and A of them in a step,

    T >= max over s of [ sum over j < s of (f_j + b_j) + A (f_s + b_s) ] + u_0

for every schedule that runs a whole backward at once (docs/pipelines.md), u_0 the update of the
first stage, which ends last. Where each is the sum of what its units take at least under any
strategy, the least of this over all cuts is below every pipeline's step.
"""

from __future__ import annotations

from math import inf

import numpy as np

from shardwise.sharding.layout import Floats


def least_step_s(passes_s: Floats, update_s: Floats, stages: int, micro_batches: int) -> float:
    """Returns the bound for U units cut into stages; infinite where there are more stages than
    units.

    `passes_s` (U,) is what forward and backward of one micro-batch take in each unit at least,
    `update_s` (U,) what the update does.
    """
    units = len(passes_s)
    if stages > units:
        return inf
    before = np.concatenate([[0.0], np.cumsum(passes_s)])
    # What stages take from each unit on: first that of the last stage alone.
    rest = micro_batches * (before[-1] - before)
    rest[units] = inf
    for stage in range(stages - 2, -1, -1):
        behind, rest = rest, np.full(units + 1, inf)
        for first in range(units if stage else 1):
            passes = before[first + 1 :] - before[first]
            of_ends = np.maximum(micro_batches * passes, passes + behind[first + 1 :])
            if not stage:
                of_ends = of_ends + np.cumsum(update_s)
            rest[first] = of_ends.min()
    return float(rest[0])
