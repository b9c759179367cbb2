"""The memory of a rank, shared between its stages.

For given cuts the best shares are those at one price of memory, at which every stage of a rank has
the strategy of least time + price x bytes (Everett 1963). Before there are cuts, stages have shares
in proportion to the memory of equal parts of the model under the guide.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from shardwise.search.pipelines.searched import Run
from shardwise.search.pipelines.stages import StageProblems
from shardwise.search.pipelines.staircases import Staircase, Staircases
from shardwise.sharding.layout import Floats

STEPS = 40
"""Bisection steps for a price."""


def guessed_shares(of: StageProblems, run: Run, weights: Floats, limits: Floats) -> Floats:
    """Returns each stage's memory, (stages,), out of the ranks' limits, (ranks,), before there are
    cuts; `weights` (U,) are the units' computation."""
    fixed = of.problem.fixed_memory_bytes
    held = np.array([_held(of, *place) for place in pairwise(even_bounds(weights, run.stages))])
    needs = held[:, 0] + np.array(run.kept) * held[:, 1]
    rank_of = np.array(run.rank_of)
    whole = np.bincount(rank_of, needs, run.ranks)
    return np.asarray(fixed + (limits - fixed)[rank_of] * needs / whole[rank_of])


def divided_at(
    staircases: Staircases, run: Run, bounds: Sequence[int], limits: Floats
) -> Floats | None:
    """Returns each stage's memory, (stages,), for these cuts within the ranks' limits, (ranks,), or
    None if some rank's stages do not fit."""
    stages, kept = staircases.stages, run.kept
    places = list(pairwise(bounds))
    within = np.zeros(run.stages)
    for own, limit in zip(run.placed, limits.tolist(), strict=True):
        stairs = [staircases.of_range(*places[stage], kept[stage]) for stage in own]
        # The stage's memory beyond its strategy's.
        beside = [limit - stages.left_bytes(places[s][0], kept[s], limit) for s in own]
        fixed = stages.problem.fixed_memory_bytes
        left = limit - fixed - sum(b - fixed for b in beside)
        shares = shared(stairs, left)
        if shares is None:
            return None
        within[list(own)] = np.array(beside) + shares
    return within


def shared(stairs: Sequence[Staircase], limit_bytes: float) -> Floats | None:
    """Returns bytes for each staircase that sum to a limit: their use at the least price at which
    they fit, and an even part of the rest; None if they do not fit."""

    def used(price: float) -> Floats:
        return np.array(
            [s.memory_bytes[(s.time_s + price * s.memory_bytes).argmin()] for s in stairs]
        )

    least = np.array([s.memory_bytes[0] for s in stairs])
    if least.sum() > limit_bytes:
        return None
    best = used(0.0)
    if best.sum() > limit_bytes:
        seconds = sum(float(s.time_s[0]) for s in stairs)
        low, high, best = -60.0, 10.0, least
        for _ in range(STEPS):
            middle = (low + high) / 2
            now = used(float(np.exp(middle)) * seconds / limit_bytes)
            if now.sum() <= limit_bytes:
                high, best = middle, now
            else:
                low = middle
    return np.asarray(best + (limit_bytes - best.sum()) / len(stairs))


def even_bounds(weights: Floats, stages: int) -> tuple[int, ...]:
    """Returns the bounds of stages of about equal weight, with at least one unit each."""
    before = np.concatenate([[0.0], np.cumsum(weights)])
    units = len(weights)
    bounds = [0]
    for stage in range(1, stages):
        at = int(np.abs(before - before[-1] * stage / stages).argmin())
        bounds.append(min(max(at, bounds[-1] + 1), units - (stages - stage)))
    return (*bounds, units)


def _held(of: StageProblems, first: int, last: int) -> tuple[float, float]:
    """Returns the guide's bytes for some units: lasting ones, and those of each kept micro-batch
    with incoming tensors."""
    lasting, kept = 0.0, of.incoming_bytes(first) if first else 0.0
    for group in of.units.groups_of(first, last):
        cost, row = of.problem.costs[group], of.guide[group]
        lasting += float(cost.parameter_bytes[row])
        kept += float(cost.activation_bytes[row])
    return lasting, kept
