"""What devices hold in a pipeline whose backward is split, moment by moment.

While part k (forward, I or W) of stage s runs, a device of its rank holds

    what lasts + (P_sk - what lasts of s - what the micro-batch of s holds)
               + sum over its stages of [ kept x K + waiting x V + before x x_in + behind x x_out ]

with P_sk the replayed peak of the part, one micro-batch at a time, K what a kept micro-batch takes
with the tensors that came in, V what one holds that waits for W, and x what crosses the cuts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardwise.pipeline.split_keeping import SplitMoments
from shardwise.replay.split_stages import WEIGHTS
from shardwise.replay.stages import ReplayedStages
from shardwise.sharding.layout import Floats


def held_bytes(
    moments: SplitMoments,
    own: Sequence[int],
    replayed: ReplayedStages,
    lasting_bytes: float,
    incoming_bytes: Sequence[float],
) -> Floats:
    """Returns what a device of a rank with the stages `own` holds at most at each moment of its
    list, (moments,); `lasting_bytes` is what it has throughout, `incoming_bytes` (stages + 1,) what
    one micro-batch brings over the cut before each stage, and behind the last."""
    split, stages = replayed.split, list(own)
    assert split is not None
    before = np.array([incoming_bytes[stage] for stage in stages])
    behind = np.array([incoming_bytes[stage + 1] for stage in stages])
    kept = replayed.kept_bytes[stages]
    # What the replay of the stage holds for the micro-batch whose part runs.
    own_bytes = np.repeat(kept[:, None], 3, axis=1)
    own_bytes[:, WEIGHTS] = split.own_waiting_bytes[stages]
    lasting = replayed.lasting_bytes[stages][:, None]
    running = split.peak_bytes[stages] - lasting - own_bytes
    held = running[moments.place, moments.part] + lasting_bytes
    held = held + moments.kept @ (kept + before) + moments.waiting @ split.waiting_bytes[stages]
    return np.asarray(held + moments.before @ before + moments.behind @ behind)


def most_kept_bytes(
    moments: SplitMoments,
    own: Sequence[int],
    replayed: ReplayedStages,
    incoming_bytes: Sequence[float],
) -> Floats:
    """Returns the most that micro-batches, kept or waiting, take in each stage of a rank."""
    split, stages = replayed.split, list(own)
    assert split is not None
    before = np.array([incoming_bytes[stage] for stage in stages])
    kept = moments.kept * (replayed.kept_bytes[stages] + before)
    return np.asarray((kept + moments.waiting * split.waiting_bytes[stages]).max(axis=0))
