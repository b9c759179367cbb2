"""Lower bounds on every pipeline with given stages and micro-batches, over all cuts.

Stage s cannot begin before a micro-batch has passed the stages before it, nor can these end before
its last gradient has passed back. With t = f + b the seconds of a micro-batch's forward and
backward, and A micro-batches in a step,

    T >= max over s of [ sum over j < s of t_j + A t_s ] + u_0

for every schedule that runs whole backwards (docs/pipeline-search.md), with u_0 the update of the
first stage, which ends last. Under 1F1B stage s starts k_s forwards, its window, before it waits
for its first gradient, which has passed all stages behind it; A backwards and A - k_s forwards
follow. So

    T >= sum over j of t_j + max over s of [ (A - 1) t_s - (k_s - 1) f_s ] + u_0

and the same with k_s = 1 for GPipe, which waits for no gradient. Neither holds for split backward,
since gradients of weights let stages fill their waits; but a stage still waits for its first
tensor, and its rank updates last:

    T >= max over s of [ sum over j < s of f_j + A t_s + u_s ]

These also hold with t the least over all strategies of a stage's units, and f and t - f their
computation forward and backward. The least over all cuts is then a bound on every pipeline.
Matrices of ranges hold in row i and column j the seconds of units i to j - 1, infinite for j <= i.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from shardwise.hardware.host import supporting_weights
from shardwise.search.pipelines.programme import least_longest, least_sum, of_cuts
from shardwise.sharding.layout import Floats


def ranges_of(by_unit: Floats) -> Floats:
    """Returns the sums over all ranges of U units: (U + 1, U + 1)."""
    before = np.concatenate([[0.0], np.cumsum(by_unit)])
    above = np.triu(np.ones((len(before),) * 2, dtype=bool), 1)
    return np.where(above, before[None, :] - before[:, None], inf)


def updates_beside(
    passes_s: Floats, update_s: Floats, host_s: Floats, constant_s: float
) -> tuple[Floats, Floats]:
    """Returns lower bounds on what each unit's update, (U,), adds to a stage's step beside the
    host.

    The host launches at most `host_s` (U,) and a constant. The first result is for prefixes of the
    units, the second for any units. A step is the soft maximum of the device's and the host's time,
    convex in the first, so an update adds at least its seconds times the slope at the end of the
    passes; the slope grows with the passes.
    """
    slopes, _ = supporting_weights(np.cumsum(passes_s), np.cumsum(host_s) + constant_s)
    first = np.diff(slopes * np.cumsum(update_s), prepend=0.0)
    least, _ = supporting_weights(passes_s, host_s + constant_s)
    return np.asarray(first), np.asarray(update_s * least.min())


def least_step_s(ranges_s: Sequence[Floats], update_s: Floats, micro_batches: int) -> float:
    """Returns the bound for every schedule; infinite if there are more stages than units.

    `ranges_s` has per stage, (U + 1, U + 1), lower bounds on forward and backward of one
    micro-batch in each range of units; `update_s` (U,) has each unit's update.
    """
    rest = np.full(len(ranges_s[0]), inf)
    rest[-1] = 0.0
    for of_stage in reversed(ranges_s[1:]):
        rest = np.maximum(micro_batches * of_stage, of_stage + rest[None, :]).min(axis=1)
    first = np.maximum(micro_batches * ranges_s[0][0], ranges_s[0][0] + rest)
    return float((first[1:] + np.cumsum(update_s)).min())


def least_split_step_s(
    ranges_s: Sequence[Floats], forward_s: Floats, update_s: Floats, micro_batches: int
) -> float:
    """Returns the bound for split backward with one stage per rank; infinite if there are more
    stages than units.

    `forward_s` (U,) is a lower bound on one micro-batch's forward computation in each unit; the
    others are as in `least_step_s`, except that `update_s` is that of any units.
    """
    forward, update = ranges_of(forward_s), ranges_of(update_s)
    rest = np.full(len(forward), inf)
    rest[-1] = 0.0
    for of_stage in reversed(ranges_s):
        own = micro_batches * of_stage + update
        rest = np.maximum(own, forward + rest[None, :]).min(axis=1)
    return float(rest[0])


@dataclass(frozen=True)
class Bound:
    """A bound on the step (infinite: there is no pipeline), and the cuts that attain it: stage s
    has the units from `cuts[s]` to `cuts[s + 1]` - 1."""

    step_s: float
    cuts: tuple[int, ...] = ()


def least_windowed(
    ranges_s: Sequence[Floats],
    backward_s: Floats,
    update_s: Floats,
    windows: Sequence[int],
    micro_batches: int,
) -> Bound:
    """Returns the bound for schedules in which stage s has `windows[s]` forwards ahead of its
    gradients.

    `backward_s`, (U,) or (stages, U), is a lower bound on one micro-batch's backward computation in
    each unit; the others are as in `least_step_s`.
    """
    # (A - 1) t - (k - 1) f, where t - f is at least the computation of backward.
    by_stage = np.broadcast_to(backward_s, (len(ranges_s), len(update_s)))
    through = [ranges_s[0] + ranges_of(update_s), *ranges_s[1:]]
    ahead = []
    for k, of_stage, of_units in zip(windows, ranges_s, by_stage, strict=True):
        some, stage_ahead = np.isfinite(of_stage), np.full(of_stage.shape, inf)
        backward = ranges_of(of_units)
        stage_ahead[some] = (micro_batches - k) * of_stage[some] + (k - 1) * backward[some]
        ahead.append(stage_ahead)
    through, ahead = ends_only(through), ends_only(ahead)
    limit, best = inf, Bound(inf)
    while True:
        cuts = least_sum(through, ahead, limit)
        if cuts is None:
            return best
        total, longest = sum(of_cuts(through, cuts)), max(of_cuts(ahead, cuts))
        if total + longest < best.step_s:
            best = Bound(total + longest, (0, *cuts[:-1], len(update_s)))
        if total + least_longest(ahead) >= best.step_s:
            return best
        limit = longest


def ends_only(matrices: Sequence[Floats]) -> list[Floats]:
    """Returns range matrices for the programme over stages: the first stage begins with the first
    unit, the last ends with the last."""
    firsts = [matrices[0][:1], *matrices[1:]]
    return [*firsts[:-1], firsts[-1][:, -1:]]
