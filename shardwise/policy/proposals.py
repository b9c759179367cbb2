"""A policy's proposals for a search: samples, and samples of the policy tuned to the problem.

Tuning needs torch and time: 30 rounds of REINFORCE with 32 samples each, within a part of what is
left of the search. Without torch the samples of the policy as it is are proposed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from math import inf
from time import monotonic

import numpy as np

from shardwise.cost.options import Options
from shardwise.policy.learner import Learner
from shardwise.policy.reinforcing import Standing
from shardwise.policy.sampling import probabilities, sampled
from shardwise.policy.task import Decisions, Task
from shardwise.policy.weights import Policy, read_policy
from shardwise.search.improve import Choices, Improver
from shardwise.search.mixed.search import MixedSearch, Propose
from shardwise.search.watch import Watch

SAMPLES = 32
ROUNDS = 30
RATE = 3e-4
PART = 0.3
"""Of the time that is left, what tuning may take at most."""


@dataclass
class Report:
    """What a policy's last proposals took and were worth, in seconds; the times are of the fastest
    strategies that fit, infinite where none does."""

    inference_s: float = 0.0
    tuning_s: float = 0.0
    rounds: int = 0
    sampled_time_s: float = inf
    tuned_time_s: float = inf


@dataclass
class Proposals:
    """Proposes a policy's strategies; `rounds` of tuning, none where it is 0."""

    policy: Policy
    rounds: int = ROUNDS
    samples: int = SAMPLES
    seed: int = 0
    report: Report = field(default_factory=Report)

    def __call__(self, search: MixedSearch, improver: Improver, watch: Watch) -> Choices:
        """Returns choices (S, groups), to be replayed; the same for the same seed, unless time is
        short."""
        draw = np.random.default_rng(self.seed)
        started = monotonic()
        task = Task.of(search, improver, self.policy.size, 1.0)
        decisions = sampled(probabilities(self.policy, task.inputs), self.samples, draw)
        self.report = Report(inference_s=monotonic() - started)
        pool = task.replayed(decisions)
        limit = search.limit_bytes
        self.report.sampled_time_s = pool.time_within(limit)
        if self.rounds:
            scaled = replace(task, scale_s=float(pool.time_s[pool.best(limit)]))
            decisions = np.concatenate([decisions, self._tuned(scaled, decisions, draw, watch)])
        return task.choices(np.unique(decisions, axis=0))

    def _tuned(
        self, task: Task, first: Decisions, draw: np.random.Generator, watch: Watch
    ) -> Decisions:
        """Returns the best strategies that were met in tuning, and samples after it."""
        started = monotonic()
        until = started + PART * watch.left_s
        learner = Learner(self.policy.weights, self.policy.size, RATE)
        standing = Standing.of(task, np.concatenate([first, task.seeds()]))
        while standing.rounds < self.rounds and monotonic() < until:
            standing.round(learner, task, self.samples, draw)
        last = sampled(learner.probabilities(task.inputs), self.samples, draw)
        standing.join(last, task.rewards(task.replayed(last)))
        self.report.tuning_s = monotonic() - started
        self.report.rounds = standing.rounds
        best = task.replayed(standing.good)
        self.report.tuned_time_s = best.time_within(task.search.limit_bytes)
        return standing.good


def proposer(options: Options) -> Propose | None:
    """Returns what proposes strategies as the options say; None without a policy.

    Raises `BadInput` for a file that is no policy.
    """
    if options.policy is None:
        return None
    tunes = find_spec("torch") is not None
    return Proposals(read_policy(options.policy), rounds=ROUNDS if tunes else 0)
