"""Steps of plans on ranks that are slowed on purpose, timed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from time import perf_counter

import torch
import torch.distributed as dist

from harness.execute.ranks import Ranks
from harness.execute.trained_rank import Source, TrainedRank
from shardwise.documents import Plan
from shardwise.execute.communication import CommunicationClock
from shardwise.measure.slowed import Slowed


@dataclass(frozen=True)
class MeasuredStep:
    """Seconds of the slowest rank's step, and by rank what computing and communicating take where
    nothing overlaps, and the peak in bytes."""

    step_s: float
    compute_s: tuple[float, ...]
    communication_s: tuple[float, ...]
    peaks: tuple[int, ...]


def measured_step(
    ranks: Ranks,
    source: Source,
    plan: Plan,
    times: Sequence[float],
    *,
    warm_up: int,
    steps: int,
    alone: int,
) -> MeasuredStep:
    """Runs a plan on ranks that are `times` times as slow: `warm_up` steps, `steps` timed ones,
    `alone` with communication apart, and two that are not slowed, of which one is followed."""
    every = ranks(_on_rank, source, plan, tuple(times), warm_up, steps, alone)
    taken, compute, communication, peaks = zip(*every, strict=True)
    slowest = [max(of_step) for of_step in zip(*taken, strict=True)]
    return MeasuredStep(median(slowest), compute, communication, peaks)


def _on_rank(
    rank: int,
    source: Source,
    plan: Plan,
    times: tuple[float, ...],
    warm_up: int,
    steps: int,
    alone: int,
) -> tuple[list[float], float, float, int]:
    slowed = Slowed(times[rank])
    trained = TrainedRank(source, plan, rank, slowed)

    def seconds() -> float:
        began = perf_counter()
        trained.step()
        return perf_counter() - began

    for _ in range(warm_up):
        trained.step()
    dist.barrier()
    taken = [seconds() for _ in range(steps)]
    compute, communication = [], []
    for _ in range(alone):
        dist.barrier()
        with CommunicationClock(torch.device("cpu"), everyone=False) as clock:
            total = seconds()
        communication.append(clock.seconds)
        compute.append(total - clock.seconds - clock.waited_s)
    slowed.active = False
    trained.step()
    peak_bytes = trained.followed_peak()
    dist.barrier()
    return taken, median(compute), median(communication), peak_bytes


def kendall_tau(one: Sequence[float], other: Sequence[float]) -> float:
    """Returns Kendall's rank correlation of two series without equal values."""
    pairs = list(combinations(range(len(one)), 2))
    agree = sum((one[i] - one[j]) * (other[i] - other[j]) > 0 for i, j in pairs)
    return (2 * agree - len(pairs)) / len(pairs)
