"""The simulated cluster: work is done once, GPUs are not lent twice, no policy gives a misfit."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.errors import BadInput
from shardwise.schedulers.cluster.job import ClusterJob, jobs_document, read_jobs
from shardwise.schedulers.cluster.policy import POLICIES, Running
from shardwise.schedulers.cluster.report import compare_policies
from shardwise.schedulers.cluster.simulate import simulate
from shardwise.schedulers.cluster.trace import generate
from shardwise.schedulers.counts import Count, Counts

GPUS = 8


@st.composite
def jobs_of_a_cluster(draw: st.DrawFn) -> list[ClusterJob]:
    jobs = []
    for number in range(draw(st.integers(1, 6))):
        counts = sorted(draw(st.sets(st.integers(1, GPUS), min_size=1, max_size=5)))
        rates = tuple((n, draw(st.floats(0.1, 100))) for n in counts)
        request = draw(st.sampled_from(counts))
        arrival, samples = draw(st.floats(0, 50)), draw(st.floats(0.1, 1000))
        jobs.append(ClusterJob(f"j{number}", arrival, samples, request, rates))
    return jobs


restarts = st.sampled_from([0.0, 3.0])


class Watched:
    """A policy whose answers are written down."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.given: list[tuple[list[ClusterJob], list[int]]] = []

    def __call__(self, jobs: Any, gpus: int) -> list[int]:
        had = [one.gpus for one in jobs]
        counts = POLICIES[self.name](jobs, gpus)
        self.given.append(([one.job for one in jobs], counts))
        if self.name in ("requests", "curves"):
            assert all(now == before for now, before in zip(counts, had, strict=True) if before)
        return counts


@pytest.mark.parametrize("name", POLICIES)
@given(jobs=jobs_of_a_cluster(), restart_s=restarts)
def test_a_job_gets_a_count_that_fits_and_no_gpu_is_lent_twice(
    name: str, jobs: list[ClusterJob], restart_s: float
) -> None:
    policy = Watched(name)
    outcome = simulate(jobs, GPUS, policy, restart_s=restart_s)
    for present, counts in policy.given:
        assert sum(counts) <= GPUS
        assert all(n == 0 or n in dict(job.rates) for job, n in zip(present, counts, strict=True))
    for job, start, end in zip(outcome.jobs, outcome.started_s, outcome.ended_s, strict=True):
        assert job.arrival_s <= start <= end
        # No sooner than alone from its arrival on.
        assert end - job.arrival_s >= job.samples / max(r for _, r in job.rates) * (1 - 1e-6)


@pytest.mark.parametrize("name", POLICIES)
@given(jobs=jobs_of_a_cluster())
def test_no_job_waits_that_could_run(name: str, jobs: list[ClusterJob]) -> None:
    """Work conservation, as each policy promises it."""
    policy = Watched(name)
    simulate(jobs, GPUS, policy)
    for present, counts in policy.given:
        free = GPUS - sum(counts)
        waiting = [job for job, n in zip(present, counts, strict=True) if n == 0]
        if name == "requests":
            assert not waiting or waiting[0].request > free
        elif name == "curves":
            # A job starts no slower than what it asked for.
            running = zip(present, counts, strict=True)
            assert all(n == 0 or j.rate(n) >= j.rate(j.request) for j, n in running)
            fastest = {j.name: [n for n, r in j.rates if r >= j.rate(j.request)] for j in waiting}
            assert all(min(counts) > free for counts in fastest.values())
        elif name == "equal":
            assert any(counts) or not present, "the first who came fits alone"
        else:
            assert all(job.least > free for job in waiting)


@pytest.mark.parametrize("name", POLICIES)
@given(jobs=jobs_of_a_cluster())
def test_what_is_done_is_the_work(name: str, jobs: list[ClusterJob]) -> None:
    """Rates, added up over the times between events, are each job's samples."""
    policy = Watched(name)
    outcome = simulate(jobs, GPUS, policy)
    times = [at for at, _ in outcome.in_use]
    assert times == sorted(times) and len(times) == len(policy.given) + 1
    done = dict.fromkeys((job.name for job in jobs), 0.0)
    used = 0.0
    for (present, counts), (start, end) in zip(policy.given, pairwise(times), strict=True):
        for job, count in zip(present, counts, strict=True):
            done[job.name] += job.rate(count) * (end - start)
        used += sum(counts) * (end - start)
    for job in jobs:
        assert done[job.name] == pytest.approx(job.samples, rel=1e-5)
    assert outcome.gpu_seconds == pytest.approx(used)
    assert used <= GPUS * outcome.makespan_s * (1 + 1e-6)


@given(jobs=jobs_of_a_cluster())
def test_a_lone_job_is_as_fast_as_its_curve(jobs: list[ClusterJob]) -> None:
    (job,) = jobs[:1]
    best = max(rate for _, rate in job.rates)
    for name, policy in POLICIES.items():
        outcome = simulate([job], GPUS, policy, restart_s=5.0)
        rate = job.rate(job.request) if name == "requests" else best
        assert outcome.completion_s == [pytest.approx(job.samples / rate)]
        assert outcome.restarts == 0


LINEAR = tuple((n, float(n)) for n in range(1, GPUS + 1))


def test_two_jobs_by_hand() -> None:
    first = ClusterJob("first", 0.0, 80.0, 8, LINEAR)
    second = ClusterJob("second", 5.0, 40.0, 4, LINEAR)
    at = {n: simulate([first, second], GPUS, p, restart_s=1.0) for n, p in POLICIES.items()}
    # 8 GPUs: 10 s; then 4 GPUs for 10 s.
    assert at["requests"].ended_s == [10.0, 20.0]
    # From 5 s on each has 4: 40 samples are left to each; the first loses a second to restart.
    # At 15 s the second ends; the first has 4 samples left and restarts on 8 GPUs.
    assert at["equal"].ended_s == pytest.approx([16.5, 15.0])
    assert at["equal"].restarts == 2
    # Nothing is free until the first ends; then the second has all.
    assert at["curves"].ended_s == [10.0, 15.0]


def test_no_job_overtakes_the_first_in_line() -> None:
    jobs = [
        Running(ClusterJob("a", 0.0, 1.0, 6, LINEAR), 1.0, gpus=6),
        Running(ClusterJob("b", 0.0, 1.0, 4, LINEAR), 1.0),
        Running(ClusterJob("c", 0.0, 1.0, 1, LINEAR), 1.0),
    ]
    assert POLICIES["requests"](jobs, GPUS) == [6, 0, 0]
    assert POLICIES["equal"](jobs, GPUS) == [2, 2, 2]
    assert POLICIES["curves"](jobs, GPUS)[0] == 6
    assert sum(POLICIES["curves"](jobs, GPUS)) == 8


def counts(name: str, least: int) -> Counts:
    rows = tuple(Count(n, 1, 1.0 / n) for n in range(least, 17))
    return Counts(name, "hw", "gpu", 1, True, 16, 16, rows)


def test_generated_jobs_are_the_same_for_a_seed_and_have_the_traces_shape() -> None:
    curves = {"small": counts("small", 1), "large": counts("large", 3)}
    jobs, names = generate(curves, 2000, 64, seed=3, load=0.8)
    assert (jobs, names) == generate(curves, 2000, 64, seed=3, load=0.8)
    assert generate(curves, 20, 64, seed=4, load=0.8)[0] != jobs[:20]
    small = [j.request for j, n in zip(jobs, names, strict=True) if n == "small"]
    for asked, share in ((1, 0.70), (2, 0.10), (4, 0.15), (8, 0.05)):
        assert small.count(asked) / len(small) == pytest.approx(share, abs=0.04)
    assert min(j.request for j, n in zip(jobs, names, strict=True) if n == "large") == 3
    minutes = [j.samples / j.rate(j.request) / 60 for j in jobs]
    assert min(minutes) >= 10**1.5 and max(minutes) <= 10**4
    assert sum(m > 1000 for m in minutes) / len(minutes) == pytest.approx(0.2, abs=0.04)
    asked_s = sum(j.samples / j.rate(j.request) * j.request for j in jobs)
    assert asked_s / (64 * jobs[-1].arrival_s) == pytest.approx(0.8, rel=0.1)
    data = msgspec.json.encode(jobs_document(jobs[:50], names[:50]))
    assert read_jobs(data, curves) == jobs[:50]


def test_the_report_is_the_same_every_time() -> None:
    curves = {"small": counts("small", 1)}
    jobs, _ = generate(curves, 12, 16, seed=0, load=2.0)
    document = compare_policies(jobs, 16, restart_s=30.0, seed=0)
    assert document == compare_policies(jobs, 16, restart_s=30.0, seed=0)
    rows = {row["policy"]: row for row in document["policies"]}
    assert list(rows) == list(POLICIES)
    assert rows["requests"]["speedup"] == 1.0
    assert rows["curves-left"]["average_completion_s"] < rows["requests"]["average_completion_s"]
    assert all(0 < row["utilisation"] <= 1 + 1e-9 for row in rows.values())


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"graph": "other"}, "jobs[0].graph"),
        ({"gpus": 1}, "jobs[0].gpus"),
        ({"samples": -1.0}, "jobs[0].samples"),
        ({"arrival_s": -1.0}, "jobs[0].arrival_s"),
    ],
)
def test_jobs_are_refused_by_field(change: dict[str, Any], field: str) -> None:
    row = {"graph": "large", "arrival_s": 0.0, "samples": 1.0, "gpus": 4, **change}
    data = msgspec.json.encode({"schema": "shardwise.jobs/1", "jobs": [row]})
    with pytest.raises(BadInput) as error:
        read_jobs(data, {"large": counts("large", 3)})
    assert error.value.field == field


def test_a_job_that_can_never_run_is_refused() -> None:
    job = ClusterJob("wide", 0.0, 1.0, 4, ((4, 1.0),))
    with pytest.raises(BadInput, match="wide needs 4 GPUs"):
        simulate([job], 2, POLICIES["equal"])
