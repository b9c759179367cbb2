"""What every pipeline of some stages and micro-batches takes at least, wherever it is cut.

Stage s cannot begin before a micro-batch has come through the stages before it, nor can these end
before its last gradient has gone back through them. With t = f + b the seconds of a micro-batch's
forward and backward, and A of them in a step,

    T >= max over s of [ sum over j < s of t_j + A t_s ] + u_0

for every schedule that runs a whole backward at once (docs/pipeline-search.md), with u_0 the update
of the first stage, which ends last. Under 1F1B stage s starts k_s forwards, its window, before it
waits for its first gradient, which has come through all stages behind it; A backwards and A - k_s
forwards follow. So

    T >= sum over j of t_j + max over s of [ (A - 1) t_s - (k_s - 1) f_s ] + u_0

and of GPipe, which waits for no gradient, with k_s = 1. Where backward is split neither holds, as
gradients of weights let stages fill their waiting; but a stage still waits for its first tensor,
and its rank updates last:

    T >= max over s of [ sum over j < s of f_j + A t_s + u_s ]

In all t may be what the units of a stage take at least under any strategy, f and t - f what they
compute forward and backward: the least over all cuts is then below every pipeline's step. Matrices
of ranges hold in row i and column j what the units from i to j - 1 take, infinite where j <= i.
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
    """Returns the sums over ranges of what U units have each: (U + 1, U + 1)."""
    before = np.concatenate([[0.0], np.cumsum(by_unit)])
    above = np.triu(np.ones((len(before),) * 2, dtype=bool), 1)
    return np.where(above, before[None, :] - before[:, None], inf)


def updates_beside(
    passes_s: Floats, update_s: Floats, host_s: Floats, constant_s: float
) -> tuple[Floats, Floats]:
    """Returns what the update of each unit, (U,), adds to the step of a stage at least, beside a
    host that launches at most `host_s` (U,) and a constant: of the first units, of which only sums
    from the beginning count, and of any units.

    A step is the soft maximum of the device's and the host's time, convex in the first, so an
    update adds its seconds times the slope where the passes end; the slope is the larger the more
    the passes, of a step, take beside the host.
    """
    slopes, _ = supporting_weights(np.cumsum(passes_s), np.cumsum(host_s) + constant_s)
    first = np.diff(slopes * np.cumsum(update_s), prepend=0.0)
    least, _ = supporting_weights(passes_s, host_s + constant_s)
    return np.asarray(first), np.asarray(update_s * least.min())


def least_step_s(ranges_s: Sequence[Floats], update_s: Floats, micro_batches: int) -> float:
    """Returns the bound that holds for every schedule; infinite where there are more stages than
    units.

    `ranges_s` is for each stage, (U + 1, U + 1), what forward and backward of one micro-batch take
    at least in each range of units, `update_s` (U,) what the update of each unit does.
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
    """Returns the bound that holds where backward is split and ranks have one stage each; infinite
    where there are more stages than units.

    `forward_s` (U,) is what one micro-batch's forward computes in each unit at least; the others
    are as in `least_step_s`, but for the update, which is that of any units.
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
    """A bound on the step, infinite where there is no pipeline, and the cuts that come nearest to
    it: stage s has the units from `cuts[s]` to `cuts[s + 1]` - 1."""

    step_s: float
    cuts: tuple[int, ...] = ()


def least_windowed(
    ranges_s: Sequence[Floats],
    backward_s: Floats,
    update_s: Floats,
    windows: Sequence[int],
    micro_batches: int,
) -> Bound:
    """Returns the bound that holds where stage s has `windows[s]` forwards ahead of its gradients.

    `backward_s` (U,), or (stages, U) where stages differ, is what one micro-batch's backward
    computes in each unit at least; the others are as in `least_step_s`.
    """
    # (A - 1) t - (k - 1) f, of which t - f is at least what backward computes.
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
    """Returns matrices of ranges as the programme over stages has them: the first stage begins with
    the first unit, the last ends with the last."""
    firsts = [matrices[0][:1], *matrices[1:]]
    return [*firsts[:-1], firsts[-1][:, -1:]]
