"""FlexFlow's random search over devices of several kinds (Jia, Zaharia, Aiken 2019, §6).

As over one kind (`peers/flexflow.py`), from EV-AR, but here the time of a proposal is that of its
replayed step, as FlexFlow simulates. The space is SOAP: an operator's output is cut, in equal
shares, over all blocks, those of some groups, or one. Gradients are summed by collectives.

Proposals do not depend on the strategy that they change, so several are replayed at once; what
follows the first that is accepted is replayed again. The walk is the same as one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp
from random import Random
from time import monotonic

import numpy as np
from numpy.typing import NDArray

from shardwise.cost.gradient_sums import COLLECTIVE
from shardwise.cost.mixed.assemble import MixedProblem
from shardwise.cost.options import Progress
from shardwise.errors import Cancelled
from shardwise.peers.answer import Answer
from shardwise.peers.flexflow import BETA, METHOD, TITLE
from shardwise.peers.mixed.data_parallel import even_collective
from shardwise.peers.mixed.space import Choices, Space
from shardwise.peers.optcnn import output_splits

PROPOSALS = 5_000
MOST_S = 30.0
"""Seconds after which a walk ends."""
RETURNS = 20
"""How often the walk returns to the best strategy so far, evenly."""
AT_ONCE = 48
"""Proposals that are replayed at a time."""


@dataclass(frozen=True)
class Walk:
    """Where a walk came: the best rows (groups,), its time and that of the start."""

    choices: Choices
    time_s: float
    start_s: float
    proposals: int
    accepted: int


def flexflow(space: Space, progress: Progress, *, proposals: int = PROPOSALS, seed: int) -> Answer:
    """Returns the fastest strategy that the random walk meets, as one point."""
    walk = random_walk(space, even_collective(space.problem), progress, proposals, seed)
    return Answer(
        METHOD,
        TITLE,
        f"random walk with Metropolis acceptance from EV-AR, {walk.proposals:,} replayed proposals",
        tuple(space.points(walk.choices[None])),
        details={
            "proposals": walk.proposals,
            "accepted": walk.accepted,
            "seed": seed,
            "beta": BETA,
            "start_time_s": walk.start_s,
        },
    )


def random_walk(
    space: Space, start: Choices, progress: Progress, proposals: int, seed: int
) -> Walk:
    """Walks from `start`; never worse than it.

    Equal seeds walk alike, unless the walk is cut off after `MOST_S` seconds. Times of strategies
    that exceed memory are penalised. Raises `Cancelled` when `progress` returns False.
    """
    random, until = Random(seed), monotonic() + MOST_S
    rows = [np.flatnonzero(mask).tolist() for mask in allowed(space.problem)]
    free = [group for group, of in enumerate(rows) if len(of) > 1]
    current, now = start, float(space.penalised_s(start[None])[0])
    best, lowest, started = current, now, now
    step = accepted = 0
    span = max(proposals // RETURNS, 1)
    waiting: list[tuple[int, int, float]] = []
    while free and step < proposals and monotonic() < until:
        if not progress("random walk", step / proposals):
            raise Cancelled
        if step % span == 0:
            current, now = best, lowest
        for _ in range(len(waiting), min(AT_ONCE, span - step % span, proposals - step)):
            group = random.choice(free)
            waiting.append((group, random.choice(rows[group]), random.random()))
        times = space.penalised_s(_changed(current, waiting)).tolist()
        for position, ((group, row, luck), time_s) in enumerate(zip(waiting, times, strict=True)):
            step += 1
            delta = time_s - now
            if delta <= 0 or luck < exp(-BETA * delta / started):
                accepted += 1
                current, now = _changed(current, [(group, row, luck)])[0], time_s
                waiting = waiting[position + 1 :]
                break
        else:
            waiting = []
        if now < lowest:
            best, lowest = current, now
    return Walk(best, lowest, started, step, accepted)


def _changed(current: Choices, proposals: list[tuple[int, int, float]]) -> Choices:
    """Returns the strategy changed by each of some proposals, (proposals, groups)."""
    changed = np.tile(current, (len(proposals), 1))
    for place, (group, row, _) in enumerate(proposals):
        changed[place, group] = row
    return changed


def allowed(problem: MixedProblem) -> list[NDArray[np.bool_]]:
    """Returns per group the rows of SOAP, each (K,)."""
    even = np.array([proportion.is_even for proportion in problem.cluster.proportions])
    return [
        mask & even[cost.proportion] & (cost.gradient_sum == COLLECTIVE)
        for mask, cost in zip(output_splits(problem), problem.costs, strict=True)
    ]
