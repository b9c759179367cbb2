"""Rounds of REINFORCE on one task, with a moving average and a pool of good strategies."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from shardwise.policy.learner import Learner
from shardwise.policy.sampling import sampled
from shardwise.policy.task import Decisions, Task
from shardwise.sharding.layout import Floats

MOST_GOOD = 8
"""Strategies of a pool."""
EVERY = 3
"""One in this many rounds learns from the pool (HeteroG's published code)."""
RECENT = 20
FEW_BESTS = 5
MORE_ENTROPY = 50.0
"""The entropy weighs so much more where the last `RECENT` bests are fewer than `FEW_BESTS`."""
ENTROPY = 2e-3


@dataclass
class Standing:
    """Where learning on a task stands: the pool (S, units) with its rewards (S,), best first, the
    moving average of rewards (NaN before any), the bests of the last rounds, rounds so far."""

    good: Decisions
    rewards: Floats
    average: float = float("nan")
    bests: list[float] = field(default_factory=list)
    rounds: int = 0

    @classmethod
    def of(cls, task: Task, seeds: Decisions) -> Standing:
        """Returns the standing before any round, with the seeds in the pool."""
        empty = cls(np.zeros((0, task.units), dtype=np.int64), np.zeros(0))
        empty.join(seeds, task.rewards(task.replayed(seeds)))
        return empty

    def join(self, decisions: Decisions, rewards: Floats) -> None:
        """Adds strategies to the pool, of which the best stay."""
        every = np.concatenate([self.good, decisions])
        all_rewards = np.concatenate([self.rewards, rewards])
        _, first = np.unique(every, axis=0, return_index=True)
        kept = first[np.lexsort((first, -all_rewards[first]))][:MOST_GOOD]
        self.good, self.rewards = every[kept], all_rewards[kept]

    @property
    def shares(self) -> tuple[Decisions, Floats]:
        """The pool's strategies with the shares that each has in imitation."""
        powers = np.exp((self.rewards - self.rewards[0]) / 0.05)
        return self.good, powers / powers.sum()

    @property
    def _entropy(self) -> float:
        few = len(self.bests) == RECENT and len(set(self.bests)) < FEW_BESTS
        return ENTROPY * (MORE_ENTROPY if few else 1.0)

    def round(self, learner: Learner, task: Task, samples: int, draw: np.random.Generator) -> None:
        """Samples strategies, learns from their rewards, and in every third round from the pool."""
        decisions = sampled(learner.probabilities(task.inputs), samples, draw)
        rewards = task.rewards(task.replayed(decisions))
        self.join(decisions, rewards)
        mean = float(rewards.mean())
        average = mean if np.isnan(self.average) else self.average
        learner.reinforce(task.inputs, decisions, rewards - average, self._entropy)
        self.average = 0.5 * (average + mean)
        self.bests = [*self.bests, float(rewards.max())][-RECENT:]
        self.rounds += 1
        if self.rounds % EVERY == 0:
            learner.imitate(task.inputs, taught(task, *self.shares))


def taught(task: Task, good: Decisions, shares: Floats) -> Floats:
    """Returns the shares of actions in strategies with these shares, (units, actions)."""
    target = np.zeros((task.units, len(task.actions.wishes)))
    for decisions, share in zip(good, shares.tolist(), strict=True):
        target[np.arange(task.units), decisions] += share
    return target
