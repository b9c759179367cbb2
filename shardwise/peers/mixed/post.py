"""Post: placement by cross-entropy minimisation and proximal policy optimisation (Gao et al. 2018).

Every segment of the model, a layer or a group outside of layers, runs on one block of devices and
is not split; which one is drawn from a distribution of its own, a softmax. (The paper places groups
of operators that it makes before.) As in its Algorithm 1

    every K samples   some steps of gradient ascent on the advantage of the last K, held near the
                      distribution that drew them by a Kullback-Leibler term (proximal)
    every N samples   the shares of the blocks among the best of the last N (cross-entropy), mixed
                      with a little of the uniform distribution

and the best sample is the answer. A block is one device here: its devices do the same work. There
are as many blocks to choose from as proportions name alone, the first of each kind: others of a
kind would only idle less, which the paper's placements could use.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic

import numpy as np

from shardwise.cost.group_costs import GroupCosts
from shardwise.cost.mixed.assemble import MixedProblem
from shardwise.cost.mixed.cluster import BLOCKS
from shardwise.cost.options import Progress
from shardwise.cost.space import NONE
from shardwise.errors import Cancelled
from shardwise.peers.answer import Answer
from shardwise.peers.mixed.space import Choices, Space
from shardwise.sharding.layout import Floats

METHOD = "post"
TITLE = "Post"
SAMPLES = 1_200
PROXIMAL, ENTROPY = 12, 60
"""K and N."""
ELITE = 0.1
UNIFORM = 0.1
ASCENTS, RATE, NEAR = 10, 0.5, 1.0
"""Steps of gradient ascent, their size, and the weight of the Kullback-Leibler term."""
MOST_S = 30.0
"""Seconds after which sampling ends."""


@dataclass(frozen=True)
class Placed:
    """The best placement, (groups,) rows of the problem, and after how many samples."""

    choices: Choices
    samples: int


def post(space: Space, progress: Progress, *, samples: int = SAMPLES, seed: int) -> Answer:
    """Returns the best placement that was sampled, as one point."""
    placed = place(space, progress, seed, samples)
    blocks = single_blocks(space.problem)
    return Answer(
        METHOD,
        TITLE,
        "every layer on one block of devices, unsplit: cross-entropy minimisation and proximal "
        f"policy optimisation over {placed.samples:,} replayed samples",
        tuple(space.points(placed.choices[None])),
        details={"samples": placed.samples, "seed": seed, "blocks": len(blocks)},
    )


def place(space: Space, progress: Progress, seed: int, samples: int = SAMPLES) -> Placed:
    """Samples placements and learns from them.

    Equal seeds place alike, unless sampling is cut off after `MOST_S` seconds. Times of placements
    that exceed memory are penalised. Raises `Cancelled` when `progress` returns False.
    """
    random, until = np.random.default_rng(seed), monotonic() + MOST_S
    rows = rows_of_placements(space.problem)
    _, segment = np.unique(space.problem.context.segments, return_inverse=True)
    groups, blocks = np.arange(len(rows)), rows.shape[1]
    segments = int(segment.max(initial=-1)) + 1
    logits = np.zeros((segments, blocks))
    # Everything on one block: what placements are compared with in the paper.
    best, lowest = rows[:, 0], np.inf
    for column, time_s in enumerate(space.penalised_s(rows.T).tolist()):
        if time_s < lowest:
            best, lowest = rows[:, column], time_s
    drawn: list[tuple[np.ndarray, float]] = []
    while len(drawn) < samples and monotonic() < until:
        if not progress("sampling", len(drawn) / samples):
            raise Cancelled
        shares = _softmax(logits)
        luck = random.random((PROXIMAL, segments, 1))
        at = np.minimum((luck > shares.cumsum(axis=1)).sum(axis=2), blocks - 1)
        sampled = rows[groups, at[:, segment]]
        times = space.penalised_s(sampled)
        drawn += zip(at, times.tolist(), strict=True)
        if times.min() < lowest:
            best, lowest = sampled[times.argmin()], float(times.min())
        if len(drawn) % ENTROPY:
            logits = _ascended(logits, at, times)
        else:
            logits = _elite(drawn[-ENTROPY:], blocks)
    return Placed(best.astype(np.uint32), len(drawn))


def _softmax(logits: Floats) -> Floats:
    raised = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=1, keepdims=True))


def _ascended(logits: Floats, at: np.ndarray, times: Floats) -> Floats:
    """Returns the distribution after proximal steps on samples `at` (K, segments)."""
    spread = float(times.std())
    if spread == 0.0:
        return logits
    advantage = (times.mean() - times) / spread
    before = _softmax(logits)
    taken = np.eye(logits.shape[1])[at]
    own = (taken * before).sum(axis=2)
    for _ in range(ASCENTS):
        now = _softmax(logits)
        ratio = (taken * now).sum(axis=2) / own
        gradient = ((ratio * advantage[:, None])[..., None] * (taken - now)).mean(axis=0)
        logits = logits + RATE * (gradient - NEAR * (now - before))
    return logits


def _elite(drawn: list[tuple[np.ndarray, float]], blocks: int) -> Floats:
    """Returns the distribution of the best samples, mixed with the uniform one."""
    ordered = sorted(drawn, key=lambda one: one[1])[: max(int(ELITE * len(drawn)), 1)]
    shares = np.eye(blocks)[np.stack([at for at, _ in ordered])].mean(axis=0)
    return np.asarray(np.log((1.0 - UNIFORM) * shares + UNIFORM / blocks))


def single_blocks(problem: MixedProblem) -> list[int]:
    """Returns the numbers of the proportions that give all to one block."""
    proportions = problem.cluster.proportions
    return [n for n, proportion in enumerate(proportions) if len(proportion.support) == 1]


def rows_of_placements(problem: MixedProblem) -> Choices:
    """Returns the row of every group on each block, (groups, blocks)."""
    blocks = single_blocks(problem)
    return np.array(
        [[_row(cost, block) for block in blocks] for cost in problem.costs], dtype=np.uint32
    )


def _row(cost: GroupCosts, proportion: int) -> int:
    """Returns the row with this proportion and the fewest splits in a block, then the fastest."""
    inside = np.delete(cost.assignment, BLOCKS, axis=1) != NONE
    keys = (cost.time_s, inside.sum(axis=1), cost.proportion != proportion)
    return int(np.lexsort(keys)[0])
