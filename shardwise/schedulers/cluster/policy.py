"""Policies: who gets how many GPUs, asked whenever a job has come or ended.

- `requests`: what each asked for, first come first served; who does not fit lets nobody pass.
- `equal`: as many jobs as can have equal shares, in the order in which they came; of its share a
  job takes its fastest count.
- `curves`: GPUs that are free go to waiting jobs by `shardwise.advise.allocate`; who runs keeps
  what it has.
- `curves-moving`: all GPUs go to all jobs by `allocate`; who gets another count is restarted.

For `allocate` each job's best rate counts as 1 (total throughput relative to what each would have
alone), so that a model with small samples is not worth more than one with large.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shardwise.advise.allocation import allocate
from shardwise.schedulers.cluster.job import ClusterJob


@dataclass
class Running:
    """A job that is there: what is left to do, and the GPUs that it has (0: it waits)."""

    job: ClusterJob
    left: float
    gpus: int = 0
    resumes_s: float = 0.0


Policy = Callable[[Sequence[Running], int], list[int]]
"""The GPUs of each job, in the order of the jobs (that of their arrivals); Σ ≤ the cluster's."""


def by_requests(jobs: Sequence[Running], gpus: int) -> list[int]:
    """First come, first served, each with what it asked for."""
    counts = [one.gpus for one in jobs]
    free = gpus - sum(counts)
    for i, one in enumerate(jobs):
        if one.gpus == 0:
            if one.job.request > free:
                break
            counts[i] = one.job.request
            free -= one.job.request
    return counts


def by_equal_shares(jobs: Sequence[Running], gpus: int) -> list[int]:
    """Equal shares to as many as can use one; the others wait."""
    admitted: list[int] = []
    for i in range(len(jobs)):
        share = gpus // (len(admitted) + 1)
        if all(jobs[j].job.least <= share for j in (*admitted, i)):
            admitted.append(i)
    share = gpus // max(1, len(admitted))
    return [one.job.best_up_to(share) if i in admitted else 0 for i, one in enumerate(jobs)]


def by_curves(jobs: Sequence[Running], gpus: int) -> list[int]:
    """Free GPUs to waiting jobs, so that their relative rates add up to the most."""
    counts = [one.gpus for one in jobs]
    waiting = [i for i, count in enumerate(counts) if count == 0]
    for i, count in zip(
        waiting, _shared([jobs[i].job for i in waiting], gpus - sum(counts), gpus), strict=True
    ):
        counts[i] = count
    return counts


def by_curves_moving(jobs: Sequence[Running], gpus: int) -> list[int]:
    """All GPUs to all jobs, so that their relative rates add up to the most."""
    return _shared([one.job for one in jobs], gpus, gpus)


POLICIES: dict[str, Policy] = {
    "requests": by_requests,
    "equal": by_equal_shares,
    "curves": by_curves,
    "curves-moving": by_curves_moving,
}


def _shared(jobs: Sequence[ClusterJob], free: int, gpus: int) -> list[int]:
    if not jobs or free < 1:
        return [0] * len(jobs)
    found = allocate([job.to_allocate(gpus) for job in jobs], free, "total-throughput")
    return [row["gpus"] for row in found["jobs"]]
