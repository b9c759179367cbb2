"""Discrete events: whenever a job comes or ends, a policy gives each job its GPUs.

Between events a job on g GPUs does T(g) samples a second, T its curve. A job whose count changes
while it runs loses `restart_s` seconds, during which it holds its GPUs and does nothing; its first
start costs nothing extra. The GPUs are alike and any of them serve any job: what a curve says of g
GPUs holds for as few nodes as hold them, and fragmentation is not modelled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from shardwise.errors import BadInput, InternalError
from shardwise.schedulers.cluster.job import ClusterJob
from shardwise.schedulers.cluster.policy import Policy, Running

TOGETHER = 1e-9
"""Events nearer than this share of the time are one."""


@dataclass
class Outcome:
    """What happened: when each job started and ended, GPUs in use from each time on."""

    jobs: list[ClusterJob]
    started_s: list[float]
    ended_s: list[float]
    restarts: int
    in_use: list[tuple[float, int]] = field(default_factory=list)

    @property
    def completion_s(self) -> list[float]:
        """From its arrival to its end, of each job."""
        return [end - job.arrival_s for job, end in zip(self.jobs, self.ended_s, strict=True)]

    @property
    def makespan_s(self) -> float:
        """From the first arrival to the last end."""
        return max(self.ended_s) - min(job.arrival_s for job in self.jobs)

    @property
    def gpu_seconds(self) -> float:
        """GPUs in use, over time."""
        pairs = zip(self.in_use, self.in_use[1:], strict=False)
        return sum(gpus * (end - start) for (start, gpus), (end, _) in pairs)


def simulate(
    jobs: Sequence[ClusterJob], gpus: int, policy: Policy, *, restart_s: float = 0.0
) -> Outcome:
    """Runs all jobs to their end.

    Raises `BadInput` naming a job that can never run, and for numbers out of range.
    """
    _check(jobs, gpus, restart_s)
    order = sorted(range(len(jobs)), key=lambda i: (jobs[i].arrival_s, i))
    coming = [jobs[i] for i in order]
    outcome = Outcome(coming, [0.0] * len(jobs), [0.0] * len(jobs), 0)
    present: dict[int, Running] = {}
    arrived, now = 0, coming[0].arrival_s
    while arrived < len(coming) or present:
        while arrived < len(coming) and coming[arrived].arrival_s <= now:
            present[arrived] = Running(coming[arrived], coming[arrived].samples)
            arrived += 1
        _give(outcome, present, policy, gpus, now, restart_s)
        ends = {i: _end(one, now) for i, one in present.items() if one.gpus}
        then = min([*ends.values(), *(job.arrival_s for job in coming[arrived : arrived + 1])])
        for i, end in ends.items():
            one = present[i]
            if end <= then * (1 + TOGETHER):
                outcome.ended_s[i] = end
                del present[i]
            else:
                one.left -= max(0.0, then - max(now, one.resumes_s)) * one.job.rate(one.gpus)
        now = then
    outcome.in_use.append((now, 0))
    return outcome


def _give(
    outcome: Outcome,
    present: dict[int, Running],
    policy: Policy,
    gpus: int,
    now: float,
    restart_s: float,
) -> None:
    """Applies what the policy says; jobs are in the order in which they came."""
    counts = policy(list(present.values()), gpus)
    if sum(counts) > gpus:
        raise InternalError(f"a policy gave {sum(counts)} of {gpus} GPUs to jobs")
    for (i, one), count in zip(present.items(), counts, strict=True):
        one.job.rate(count)  # a KeyError is a defect of the policy
        if count == one.gpus:
            continue
        begun = one.left < one.job.samples or one.gpus > 0
        if begun and count > 0:
            outcome.restarts += 1
            one.resumes_s = now + restart_s
        elif not begun:
            outcome.started_s[i] = now
        one.gpus = count
    outcome.in_use.append((now, sum(counts)))


def _end(one: Running, now: float) -> float:
    return max(now, one.resumes_s) + one.left / one.job.rate(one.gpus)


def _check(jobs: Sequence[ClusterJob], gpus: int, restart_s: float) -> None:
    if not jobs:
        raise BadInput("none", field="jobs", expected="at least one job")
    if gpus < 1:
        raise BadInput(f"got {gpus}", field="gpus", expected="a whole number from 1")
    if not 0 <= restart_s < float("inf"):
        raise BadInput(f"got {restart_s}", field="restart", expected="seconds from 0")
    for i, job in enumerate(jobs):
        if max(job.least, job.request) > gpus:
            raise BadInput(
                f"{job.name} needs {max(job.least, job.request)} GPUs",
                field=f"jobs[{i}].gpus",
                expected=f"at most {gpus}",
            )
