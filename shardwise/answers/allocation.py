"""Sharing n GPUs among jobs by their curves, exactly for the given objective.

A job i gets g_i GPUs (0: it waits) with g_i a feasible count of its curve and Σ g_i ≤ n. With
T_i(g) its samples per second on g GPUs and w_i its weight:

- `total-throughput`: max Σ w_i · T_i(g_i);
- `max-min`: the utilities u_i(g) = T_i(g) / (w_i · max_{h ≤ n} T_i(h)), the shares of what each
  job would have alone, are made as equal as can be: the smallest is as large as possible, then the
  second smallest, and so on (the lexicographic order of max-min fairness);
- `deadlines`: max Σ w_i over the jobs that meet their deadline (steps · time_s(g_i) ≤ deadline_s),
  then the throughput of all jobs relative to what each would have alone.

Among equally good allocations the one with the fewest GPUs in use is given. Every objective is a
sum over jobs in an ordered group, so one dynamic programme over (jobs, GPUs) solves all: best[k] is
the best sum of the jobs so far with k GPUs. Sums are integers, so that no order depends on
rounding: throughputs and weights are taken exactly as the binary fractions that they are (only the
second aim of `deadlines` is taken in multiples of 2⁻⁴⁰). For `max-min` a utility of rank r (0: the
least) among K distinct ones counts −(J + 1)^(K − r): fewer small utilities outweigh anything that
comes after them. There, the largest smallest utility is computed first; options that give a job
less are left out, and the programme shares only the GPUs beyond what that utility takes. These
numbers have K · log₂(J + 1) bits, so their cost is bounded too.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import lcm
from typing import TypeVar

import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from shardwise.documents import Curve
from shardwise.documents.curve import fastest_s, fastest_samples_per_s
from shardwise.documents.jobs import AllocatedJob, Allocation
from shardwise.errors import BadInput

ALLOCATION_OBJECTIVES = ("total-throughput", "max-min", "deadlines")
MAX_WORK = 3 * 10**7
"""Maximum additions of one allocation: Σ over jobs of their GPU counts, times n."""
MAX_FAIR_WORK = 6 * 10**7
"""Maximum 64-bit additions of the `max-min` programme: Σ over jobs of the remaining options, times
the shared GPUs, times the words of its numbers and 16 for the addition itself. At 16 · 10⁶ one took
0.5 s on one core."""

_SCALE = 2**40
Objects = NDArray[np.object_]
T = TypeVar("T")


@dataclass(frozen=True)
class CurvePoint:
    """One feasible GPU count of a job's curve."""

    gpus: int
    time_s: float
    samples_per_s: float


@dataclass(frozen=True)
class AllocationJob:
    """A job that needs GPUs. `deadline_s` is for all `steps`, counted from now."""

    name: str
    points: tuple[CurvePoint, ...]
    weight: float = 1.0
    steps: int | None = None
    deadline_s: float | None = None

    def meets(self, point: CurvePoint) -> bool:
        """Returns whether the job ends in time on this count."""
        if self.deadline_s is None or self.steps is None:
            return False
        return point.time_s * self.steps <= self.deadline_s


def job_from_curve(
    curve: Curve,
    name: str,
    *,
    weight: float = 1.0,
    steps: int | None = None,
    deadline_s: float | None = None,
) -> AllocationJob:
    """Returns a job from its curve, using the time that ranks its points.

    Without a batch size a sample is a step.
    """
    known = [(p, fastest_s(p, curve.overlap is True)) for p in curve.points]
    points = tuple(
        CurvePoint(p.gpus, s, fastest_samples_per_s(p) or 1.0 / s)
        for p, s in known
        if s is not None
    )
    return AllocationJob(name, points, weight, steps, deadline_s)


def allocate(jobs: Sequence[AllocationJob], gpus: int, objective: str) -> Allocation:
    """Returns how to share `gpus` among the jobs.

    Raises `BadInput` for an unknown objective, numbers out of range, and more than `MAX_WORK`.
    """
    _check(jobs, gpus, objective)
    every = options = [_options(job, gpus) for job in jobs]
    if objective == "total-throughput":
        values = _throughput_values(jobs, options)
    elif objective == "max-min":
        shares = _shares(jobs, options)
        runs = _with_best_smallest(shares, options, gpus)
        options, shares = _runs_of(options, runs), _runs_of(shares, runs)
        _check_fair_work(options, gpus)
        values = _fairness_values(shares)
    else:
        values = _deadline_values(jobs, options)
    counts = _best_counts(options, values, gpus)
    chosen = [row[number] for row, number in zip(options, counts, strict=True)]
    return _document(jobs, every, chosen, gpus, objective)


Option = CurvePoint | None
"""An option of a job: a point of its curve, or nothing."""


def _options(job: AllocationJob, gpus: int) -> list[Option]:
    """Returns the options that can win: no GPUs, and every count faster than all smaller ones."""
    kept: list[Option] = [None]
    fastest = 0.0
    for point in sorted(job.points, key=lambda p: p.gpus):
        if point.gpus <= gpus and point.samples_per_s > fastest:
            kept.append(point)
            fastest = point.samples_per_s
    return kept


def _speed(option: Option) -> float:
    return 0.0 if option is None else option.samples_per_s


def _alone(options: list[Option]) -> float:
    """Returns the job's throughput alone on all GPUs."""
    return max(map(_speed, options)) or 1.0


def _exact(rows: list[list[Fraction]]) -> list[list[int]]:
    """Returns integers in exact proportion to the fractions."""
    common = lcm(*(value.denominator for row in rows for value in row))
    return [[int(value * common) for value in row] for row in rows]


def _throughput_values(
    jobs: Sequence[AllocationJob], options: list[list[Option]]
) -> list[list[int]]:
    return _exact(
        [
            [Fraction(job.weight) * Fraction(_speed(o)) for o in row]
            for job, row in zip(jobs, options, strict=True)
        ]
    )


def _shares(jobs: Sequence[AllocationJob], options: list[list[Option]]) -> list[list[Fraction]]:
    """Returns the utility of each option; ascending, as the options are."""
    return [
        [Fraction(_speed(o)) / Fraction(_alone(row)) / Fraction(job.weight) for o in row]
        for job, row in zip(jobs, options, strict=True)
    ]


def _with_best_smallest(
    shares: list[list[Fraction]], options: list[list[Option]], gpus: int
) -> list[slice]:
    """Returns each job's options that allow the largest smallest utility and need no more GPUs than
    are then spare.

    Jobs that can get nothing at all do not limit the others.
    """
    able = [i for i, row in enumerate(options) if len(row) > 1]

    def needs(least: Fraction) -> list[int] | None:
        """Returns each able job's first option with at least `least`; None if these take too many
        GPUs."""
        firsts = [bisect_left(shares[i], least) for i in able]
        if any(f == len(shares[i]) for i, f in zip(able, firsts, strict=True)):
            return None
        used = sum(_gpus(options[i][f]) for i, f in zip(able, firsts, strict=True))
        return firsts if used <= gpus else None

    levels = sorted({share for i in able for share in shares[i]})
    low, high = 0, len(levels)
    # Without any GPUs every share is at least the smallest.
    firsts = [0 for _ in able]
    while high - low > 1:
        middle = (low + high) // 2
        met = needs(levels[middle])
        if met is None:
            high = middle
        else:
            low, firsts = middle, met
    begins = dict(zip(able, firsts, strict=True))
    runs = [slice(begins.get(i, 0), len(row)) for i, row in enumerate(options)]
    spare = _spare(_runs_of(options, runs), gpus)

    def within(row: list[Option], run: slice) -> slice:
        most = _gpus(row[run.start]) + spare
        return slice(run.start, bisect_right(row, most, run.start, key=_gpus))

    return [within(row, run) for row, run in zip(options, runs, strict=True)]


def _runs_of(rows: list[list[T]], runs: list[slice]) -> list[list[T]]:
    return [row[run] for row, run in zip(rows, runs, strict=True)]


def _spare(options: list[list[Option]], gpus: int) -> int:
    """Returns the GPUs beyond what every option of each job takes."""
    return gpus - sum(_gpus(row[0]) for row in options)


def _check_fair_work(options: list[list[Option]], gpus: int) -> None:
    """Raises `BadInput` for a programme with numbers that are too long."""
    levels = sum(len(row) for row in options)
    words = levels * len(options).bit_length() // 64
    spare = _spare(options, gpus)
    if levels * (spare + 1) * (16 + words) > MAX_FAIR_WORK:
        raise BadInput(
            f"{len(options)} jobs with {levels} counts that are left for {spare} GPUs",
            field="jobs",
            expected="fewer jobs, curves of fewer counts, or another objective",
        )


def _fairness_values(shares: list[list[Fraction]]) -> list[list[int]]:
    distinct = sorted({share for row in shares for share in row})
    base = len(shares) + 1
    worth = {share: -(base ** (len(distinct) - r)) for r, share in enumerate(distinct)}
    return [[worth[share] for share in row] for row in shares]


def _deadline_values(jobs: Sequence[AllocationJob], options: list[list[Option]]) -> list[list[int]]:
    met = _exact(
        [
            [Fraction(job.weight) if o is not None and job.meets(o) else Fraction(0) for o in row]
            for job, row in zip(jobs, options, strict=True)
        ]
    )
    # The smallest difference of two weight sums outweighs all relative throughputs together.
    above = _SCALE * (len(jobs) + 1)
    return [
        [m * above + round(_speed(o) / _alone(row) * _SCALE) for m, o in zip(won, row, strict=True)]
        for won, row in zip(met, options, strict=True)
    ]


def _gpus(option: Option) -> int:
    return 0 if option is None else option.gpus


def _best_counts(options: list[list[Option]], values: list[list[int]], gpus: int) -> list[int]:
    """Returns the option of each job: best[k] over the jobs so far with at most k GPUs in use.

    GPUs that every option of a job takes are set aside, the rest are shared. GPUs in use are the
    last digit of every value, so that ties go to fewer.
    """
    digit = gpus + 1
    spare = _spare(options, gpus)
    best: Objects = np.array([0] * (spare + 1), dtype=object)
    taken: list[NDArray[np.int32]] = []
    for row, worth in zip(options, values, strict=True):
        extended: Objects = best + worth[0] * digit
        choice = np.zeros(spare + 1, dtype=np.int32)
        for number, (option, value) in enumerate(zip(row, worth, strict=True)):
            more = _gpus(option) - _gpus(row[0])
            if number == 0 or more > spare:
                continue
            with_it = best[: spare + 1 - more] + (value * digit - more)
            better = np.flatnonzero(with_it > extended[more:])
            extended[more + better] = with_it[better]
            choice[more + better] = number
        taken.append(choice)
        best = extended
    left = spare
    counts = []
    for row, choice in zip(reversed(options), reversed(taken), strict=True):
        number = int(choice[left])
        left -= _gpus(row[number]) - _gpus(row[0])
        counts.append(number)
    return counts[::-1]


def _check(jobs: Sequence[AllocationJob], gpus: int, objective: str) -> None:
    if objective not in ALLOCATION_OBJECTIVES:
        raise BadInput(
            f"unknown objective {objective!r}",
            field="objective",
            expected=", ".join(ALLOCATION_OBJECTIVES),
        )
    if gpus < 1:
        raise BadInput(f"{gpus} GPUs", field="gpus", expected="a whole number from 1")
    for i, job in enumerate(jobs):
        if not 0 < job.weight <= 1e9:
            raise BadInput(
                f"got {job.weight}", field=f"jobs[{i}].weight", expected="above 0, to 1e9"
            )
        if (job.deadline_s is None) != (job.steps is None) and objective == "deadlines":
            raise BadInput(
                "a deadline needs a number of steps",
                field=f"jobs[{i}].steps",
                expected="both deadline_s and steps, or neither",
            )
    work = sum(len(job.points) for job in jobs) * gpus
    if work > MAX_WORK:
        raise BadInput(
            f"{len(jobs)} jobs on {gpus} GPUs",
            field="jobs",
            expected="fewer jobs, or curves of fewer counts",
        )


def _document(
    jobs: Sequence[AllocationJob],
    options: list[list[Option]],
    chosen: list[Option],
    gpus: int,
    objective: str,
) -> Allocation:
    rows = [
        AllocatedJob(
            name=job.name,
            gpus=_gpus(option),
            time_s=None if option is None else option.time_s,
            samples_per_s=_speed(option),
            share_of_alone=_speed(option) / _alone(row),
            weight=job.weight,
            meets_deadline=UNSET
            if job.deadline_s is None
            else option is not None and job.meets(option),
            reason=UNSET if len(row) > 1 else f"nothing fits on {gpus} GPUs",
        )
        for job, row, option in zip(jobs, options, chosen, strict=True)
    ]
    return Allocation(
        objective=objective,
        gpus=gpus,
        gpus_used=sum(row.gpus for row in rows),
        samples_per_s=sum(row.samples_per_s for row in rows),
        smallest_share=min((row.share_of_alone for row in rows), default=None),
        deadlines_met=sum(row.meets_deadline is True for row in rows),
        jobs=rows,
    )
