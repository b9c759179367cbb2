"""A policy against the search without it, in equal time, on families that it has not seen.

Both searches begin when a problem has been assembled, which they share: one with the incumbents
alone, one with the policy's proposals besides, whose inference and tuning count as its time. Which
of them is first changes from case to case. Times are of the fastest strategy that fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite
from statistics import median
from time import monotonic

import msgspec

from shardwise.cost.options import Options, Progress, quiet
from shardwise.errors import Cancelled
from shardwise.policy.proposals import Proposals
from shardwise.policy.teaching import Family, Joined, joined_of
from shardwise.policy.weights import Policy
from shardwise.search.mixed.search import MixedCount, Propose
from shardwise.search.watch import Watch

SCHEMA = "shardwise.policy-evaluation/1"
EVALUATION_SEED = 10**6
"""Added to seeds, so that no cluster of training is met again."""
EQUAL = 1e-4
"""Relative: times that count as equal."""


class Case(msgspec.Struct):
    """A family on a cluster. Times are of a step in seconds, None where nothing fits: of the best
    incumbent, of the best sample, after tuning, and of both searches, with what each took."""

    family: str
    gpus: str
    groups: int
    incumbent_time_s: float | None
    sampled_time_s: float | None
    tuned_time_s: float | None
    search_time_s: float | None
    policy_time_s: float | None
    search_s: float
    policy_s: float
    inference_s: float
    tuning_s: float
    rounds: int

    @property
    def ratio(self) -> float | None:
        """The time with the policy over that without; None where either has none."""
        if self.search_time_s is None or self.policy_time_s is None:
            return None
        return self.policy_time_s / self.search_time_s


class Evaluation(msgspec.Struct):
    """All cases; a ratio below 1 says that the policy's step is shorter."""

    schema: str
    seconds: float
    seed: int
    size: str
    rounds: int
    median_ratio: float | None
    policy_wins: int
    search_wins: int
    ties: int
    median_inference_s: float
    longest_inference_s: float
    cases: list[Case]


def evaluate(
    policy: Policy,
    families: Sequence[Family],
    *,
    clusters: int,
    seconds: float,
    seed: int = 0,
    progress: Progress = quiet,
) -> Evaluation:
    """Compares both searches on every family and `clusters` random clusters for each.

    Raises `Cancelled` when `progress` returns False, `BadInput` without torch.
    """
    cases = []
    for number in range(len(families) * clusters):
        if not progress("evaluating", number / (len(families) * clusters)):
            raise Cancelled
        family = families[number % len(families)]
        joined = joined_of(family, (EVALUATION_SEED + seed, number), Options(threads=1))
        cases.append(_case(policy, family.name, joined, seconds, policy_first=number % 2 == 1))
    return _summary(policy, cases, seconds, seed)


def _case(
    policy: Policy, family: str, joined: Joined, seconds: float, *, policy_first: bool
) -> Case:
    # What is computed once for a problem is computed before both.
    first = MixedCount(joined, Watch(quiet))
    first.begin()
    incumbent_s = first.time_within(first.limit_bytes)
    proposals = Proposals(policy)
    order: list[Propose | None] = [proposals, None] if policy_first else [None, proposals]
    found = {propose is None: _searched(joined, seconds, propose) for propose in order}
    report = proposals.report
    return Case(
        family=family,
        gpus=str(joined.search.bundle),
        groups=len(joined.search.problem.costs),
        incumbent_time_s=_finite(incumbent_s),
        sampled_time_s=_finite(report.sampled_time_s),
        tuned_time_s=_finite(report.tuned_time_s),
        search_time_s=_finite(found[True][0]),
        policy_time_s=_finite(found[False][0]),
        search_s=found[True][1],
        policy_s=found[False][1],
        inference_s=report.inference_s,
        tuning_s=report.tuning_s,
        rounds=report.rounds,
    )


def _searched(joined: Joined, seconds: float, propose: Propose | None) -> tuple[float, float]:
    """Returns the time of the fastest strategy that fits, and the seconds that the search took."""
    started = monotonic()
    count = MixedCount(joined, Watch(quiet, seconds), propose)
    count.search_within(count.limit_bytes, inf)
    return count.time_within(count.limit_bytes), monotonic() - started


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None


def _summary(policy: Policy, cases: list[Case], seconds: float, seed: int) -> Evaluation:
    ratios = [case.ratio for case in cases if case.ratio is not None]
    alone = [case.policy_time_s for case in cases if case.search_time_s is None]
    other = [case.search_time_s for case in cases if case.policy_time_s is None]
    wins = sum(ratio < 1.0 - EQUAL for ratio in ratios) + sum(t is not None for t in alone)
    losses = sum(ratio > 1.0 + EQUAL for ratio in ratios) + sum(t is not None for t in other)
    inference = [case.inference_s for case in cases]
    return Evaluation(
        schema=SCHEMA,
        seconds=seconds,
        seed=seed,
        size=policy.size.name,
        rounds=policy.description.rounds,
        median_ratio=median(ratios) if ratios else None,
        policy_wins=wins,
        search_wins=losses,
        ties=len(cases) - wins - losses,
        median_inference_s=median(inference) if inference else 0.0,
        longest_inference_s=max(inference, default=0.0),
        cases=cases,
    )
