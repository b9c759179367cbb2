"""Results of the policies, as the document `shardwise.cluster/1`."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median
from typing import Any

from shardwise.schedulers.cluster.job import ClusterJob
from shardwise.schedulers.cluster.policy import POLICIES
from shardwise.schedulers.cluster.simulate import Outcome, simulate

CLUSTER_SCHEMA = "shardwise.cluster/1"


def compare_policies(
    jobs: Sequence[ClusterJob], gpus: int, *, restart_s: float, **about: Any
) -> dict[str, Any]:
    """Returns every policy on the same jobs; `about` says where they came from.

    `utilisation` is GPU-seconds in use over those that there were until the last job ended;
    `speedup` the average completion time of `requests` over the policy's.
    """
    outcomes = {
        name: simulate(jobs, gpus, policy, restart_s=restart_s) for name, policy in POLICIES.items()
    }
    base = fmean(outcomes["requests"].completion_s)
    return {
        "schema": CLUSTER_SCHEMA,
        "gpus": gpus,
        "jobs": len(jobs),
        "restart_s": restart_s,
        **about,
        "policies": [_row(name, outcome, gpus, base) for name, outcome in outcomes.items()],
    }


def _row(name: str, outcome: Outcome, gpus: int, base: float) -> dict[str, Any]:
    completion = outcome.completion_s
    waited = [
        start - job.arrival_s for job, start in zip(outcome.jobs, outcome.started_s, strict=True)
    ]
    return {
        "policy": name,
        "average_completion_s": fmean(completion),
        "median_completion_s": median(completion),
        "average_wait_s": fmean(waited),
        "makespan_s": outcome.makespan_s,
        "utilisation": outcome.gpu_seconds / (gpus * outcome.makespan_s),
        "restarts": outcome.restarts,
        "speedup": base / fmean(completion),
        "completion_s": completion,
        "in_use": [[at, used] for at, used in outcome.in_use],
    }
