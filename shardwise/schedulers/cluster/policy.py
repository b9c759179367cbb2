"""Policies: which job gets how many GPUs, asked whenever a job has come or ended.

- `requests`: what each asked for, first come first served; no job overtakes one that does not fit.
- `equal`: as many jobs as can have equal shares, in the order in which they came; of its share a
  job takes its fastest count.
- `curves`: GPUs that are free go to waiting jobs by `shardwise.answers.allocate`, each at least as
  fast as what it asked for (a job that starts slow stays slow); a running job keeps what it has.
- `curves-fair`: all GPUs go to all jobs by `allocate` with `max-min`: the shares of what each would
  have alone are as equal as can be. A job that gets another count is restarted.
- `curves-left`: the same by `total-throughput`, weighed by the work that is left to each job, so
  that the most jobs end soonest; the caller must know how many steps are left.

In `curves` each job's best rate counts as 1, so that a model with small samples is not worth more
than one with large.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shardwise.answers.allocation import AllocationJob, allocate
from shardwise.schedulers.cluster.job import ClusterJob


@dataclass
class Running:
    """A job in the cluster: what is left to do, and the GPUs that it has (0: it waits)."""

    job: ClusterJob
    left: float
    gpus: int = 0
    resumes_s: float = 0.0


LEAST_LEFT = 1e-9
"""Samples; what is left of a job that ends just now weighs no more."""

Policy = Callable[[Sequence[Running], int], list[int]]
"""The GPUs of each job, in the order of the jobs (that of their arrivals); Σ ≤ the cluster's."""


def by_requests(jobs: Sequence[Running], gpus: int) -> list[int]:
    """Gives each job what it asked for, first come, first served."""
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
    """Gives equal shares to as many as can use one; the others wait."""
    admitted: list[int] = []
    for i in range(len(jobs)):
        share = gpus // (len(admitted) + 1)
        if all(jobs[j].job.least <= share for j in (*admitted, i)):
            admitted.append(i)
    share = gpus // max(1, len(admitted))
    return [one.job.best_up_to(share) if i in admitted else 0 for i, one in enumerate(jobs)]


def by_curves(jobs: Sequence[Running], gpus: int) -> list[int]:
    """Gives free GPUs to waiting jobs, so that their relative rates add up to the most."""
    counts = [one.gpus for one in jobs]
    waiting = [i for i, count in enumerate(counts) if count == 0]
    asked = []
    for i in waiting:
        job = jobs[i].job
        alone = job.rate(job.best_up_to(gpus))
        asked.append(job.to_allocate(weight=1.0 / alone, least=job.rate(job.request)))
    shares = _shared(asked, gpus - sum(counts), "total-throughput")
    for i, count in zip(waiting, shares, strict=True):
        counts[i] = count
    return counts


def by_curves_fairly(jobs: Sequence[Running], gpus: int) -> list[int]:
    """Gives all GPUs to all jobs, by the smallest share of what each would have alone."""
    return _shared([one.job.to_allocate() for one in jobs], gpus, "max-min")


def by_work_left(jobs: Sequence[Running], gpus: int) -> list[int]:
    """Gives all GPUs to all jobs: the rates over the work left to each add up to the most."""
    asked = [one.job.to_allocate(weight=1.0 / max(one.left, LEAST_LEFT)) for one in jobs]
    return _shared(asked, gpus, "total-throughput")


POLICIES: dict[str, Policy] = {
    "requests": by_requests,
    "equal": by_equal_shares,
    "curves": by_curves,
    "curves-fair": by_curves_fairly,
    "curves-left": by_work_left,
}


def _shared(jobs: Sequence[AllocationJob], free: int, objective: str) -> list[int]:
    if not jobs or free < 1:
        return [0] * len(jobs)
    allocation = allocate(jobs, free, objective)
    return [row.gpus for row in allocation.jobs]
