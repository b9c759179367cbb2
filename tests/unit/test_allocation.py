"""Allocations against every way there is, on small clusters."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.answers import document
from shardwise import documents
from shardwise.answers import ALLOCATION_OBJECTIVES, AllocationJob, allocate, job_from_curve
from shardwise.answers.allocation import CurvePoint
from shardwise.errors import BadInput

speeds = st.integers(1, 40)


@st.composite
def drawn_job(draw: st.DrawFn) -> AllocationJob:
    counts = draw(st.lists(st.integers(1, 6), unique=True, max_size=4))
    points = []
    for gpus in counts:
        samples = draw(speeds)
        points.append(CurvePoint(gpus, 8 / samples, float(samples)))
    timed = draw(st.booleans())
    return AllocationJob(
        "job",
        tuple(points),
        float(draw(st.sampled_from((1, 1, 2, 3)))),
        draw(st.integers(1, 20)) if timed else None,
        float(draw(st.integers(1, 30))) if timed else None,
    )


def every_way(jobs: list[AllocationJob], gpus: int) -> list[tuple[CurvePoint | None, ...]]:
    choices = [[None, *job.points] for job in jobs]
    return [
        way
        for way in itertools.product(*choices)
        if sum(point.gpus for point in way if point is not None) <= gpus
    ]


def worth(jobs: list[AllocationJob], way: Any, gpus: int, objective: str) -> Any:
    """What the objective's definition says of one way, in exact arithmetic."""
    speed = [Fraction(0 if p is None else p.samples_per_s) for p in way]
    alone = [
        max((Fraction(p.samples_per_s) for p in job.points if p.gpus <= gpus), default=Fraction(1))
        for job in jobs
    ]
    weight = [Fraction(job.weight) for job in jobs]
    used = sum(0 if p is None else p.gpus for p in way)
    if objective == "total-throughput":
        return sum((w * s for w, s in zip(weight, speed, strict=True)), Fraction(0)), -used
    if objective == "max-min":
        shares = sorted(s / a / w for s, a, w in zip(speed, alone, weight, strict=True))
        return shares, -used
    met = sum(
        (
            w
            for job, p, w in zip(jobs, way, weight, strict=True)
            if p is not None
            and job.steps is not None
            and job.deadline_s is not None
            and p.time_s * job.steps <= job.deadline_s
        ),
        Fraction(0),
    )
    relative = sum((s / a for s, a in zip(speed, alone, strict=True)), Fraction(0))
    return met, relative


@pytest.mark.parametrize("objective", ALLOCATION_OBJECTIVES)
@given(jobs=st.lists(drawn_job(), min_size=1, max_size=4), gpus=st.integers(1, 9))
def test_no_way_is_better(objective: str, jobs: list[AllocationJob], gpus: int) -> None:
    allocation = document(allocate(jobs, gpus, objective))
    chosen = tuple(
        next((p for p in job.points if p.gpus == row["gpus"]), None)
        for job, row in zip(jobs, allocation["jobs"], strict=True)
    )
    assert [0 if p is None else p.gpus for p in chosen] == [r["gpus"] for r in allocation["jobs"]]
    assert allocation["gpus_used"] == sum(row["gpus"] for row in allocation["jobs"]) <= gpus
    best = max(worth(jobs, way, gpus, objective) for way in every_way(jobs, gpus))
    mine = worth(jobs, chosen, gpus, objective)
    if objective == "deadlines":
        # Relative throughputs are thirds and sevenths, compared in multiples of 2⁻⁴⁰.
        assert mine[0] == best[0]
        assert abs(mine[1] - best[1]) < Fraction(1, 2**36)
    else:
        assert mine == best


def linear(name: str, per_gpu: float, most: int, **extra: Any) -> AllocationJob:
    points = tuple(CurvePoint(g, 1 / (g * per_gpu), g * per_gpu) for g in range(1, most + 1))
    return AllocationJob(name, points, **extra)


def test_max_min_looks_beyond_the_smallest_share() -> None:
    """With the smallest share fixed by one job, the others still get theirs as equal as can be."""
    stuck = AllocationJob("stuck", (CurvePoint(8, 1.0, 1.0),))
    allocation = document(allocate([stuck, linear("a", 1, 4), linear("b", 1, 4)], 4, "max-min"))
    assert [row["gpus"] for row in allocation["jobs"]] == [0, 2, 2]
    assert "nothing fits" in allocation["jobs"][0]["reason"]


def test_a_deadline_goes_before_throughput() -> None:
    late = linear("late", 1, 8, steps=10, deadline_s=2.5)  # needs 4 GPUs
    fast = linear("fast", 100, 8)
    allocation = document(allocate([fast, late], 6, "deadlines"))
    assert [row["gpus"] for row in allocation["jobs"]] == [2, 4]
    assert allocation["deadlines_met"] == 1
    assert allocation["jobs"][1]["meets_deadline"] is True


def test_a_curve_document_becomes_a_job() -> None:
    nothing = dict.fromkeys(
        ("time_s", "replayed_time_s", "samples_per_s", "peak_bytes", "memory_bytes", "plan_id")
    )
    large = documents.CurvePoint(
        gpus=1, nodes=1, feasible=False, **nothing, compute_shares=None, confidence=""
    )
    fits = msgspec.structs.replace(large, gpus=2, feasible=True, time_s=0.5)
    curve = documents.Curve(max_gpus=2, points=[large, fits])
    job = job_from_curve(curve, "x", weight=2.0)
    assert job.points == (CurvePoint(2, 0.5, 2.0),)
    assert job.weight == 2.0


@pytest.mark.parametrize(
    ("jobs", "gpus", "objective", "field"),
    [
        ([linear("a", 1, 2)], 2, "fastest", "objective"),
        ([linear("a", 1, 2)], 0, "max-min", "gpus"),
        ([linear("a", 1, 2, weight=0.0)], 2, "max-min", "jobs[0].weight"),
        ([linear("a", 1, 2, steps=3)], 2, "deadlines", "jobs[0].steps"),
        ([linear("a", 1, 4096)] * 20, 4096, "max-min", "jobs"),
    ],
)
def test_what_is_refused(jobs: list[AllocationJob], gpus: int, objective: str, field: str) -> None:
    with pytest.raises(BadInput) as refused:
        document(allocate(jobs, gpus, objective))
    assert refused.value.field == field


def weighted(name: str, weight: float, counts: int, seed: int) -> AllocationJob:
    """A job whose throughput grows by another amount with each GPU."""
    speed, points = 0.0, []
    for gpus in range(1, counts + 1):
        speed += 1.0 + (seed * 7919 + gpus * 104729) % 1009 / 1009
        points.append(CurvePoint(gpus, 1.0 / speed, speed))
    return AllocationJob(name, tuple(points), weight)


def test_a_fair_allocation_that_would_take_minutes_is_refused() -> None:
    # The first job has all that it can use at a share that the others reach with few GPUs.
    first = weighted("first", 1e3, 1, 0)
    jobs = [first, *(weighted(str(n), 1.0, 60, n) for n in range(1, 400))]
    with pytest.raises(BadInput, match=r"counts that are left for \d+ GPUs"):
        allocate(jobs, 800, "max-min")
    assert allocate(jobs, 800, "total-throughput").gpus_used == 800


def test_a_fair_allocation_without_gpus_to_spare_is_cheap() -> None:
    jobs = [weighted(str(n), 1.0, 64, n) for n in range(1, 201)]
    rows = allocate(jobs, 512, "max-min").jobs
    assert min(row.gpus for row in rows) >= 1
