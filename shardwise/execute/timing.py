"""One training step of a plan, measured: iteration time, its two parts, peak memory.

There are three kinds of steps, after a warm-up:

    ordinary        iteration time: the slowest rank's in each step, the median over the steps
    timed alone     communication: seconds in collectives with nothing overlapping (TensorOpt
                    Eq. 2 and 3), each as slow as on its slowest rank, as tables of a profile have
                    it; computation: the rest, without waiting; means over the ranks
    followed        peak memory: for each rank, the most that its tensors take at once
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean, median
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_leaves

from shardwise.execute.allocation import AllocationTracker
from shardwise.execute.communication import CommunicationClock

LEAST_TIMED = 5
"""Steps timed alone: among fewer, one interrupted step would distort the result."""

Step = Callable[[], None]


@dataclass(frozen=True)
class StepTimes:
    """Seconds and bytes over all ranks, the same on every rank."""

    iterations_s: tuple[float, ...]
    compute_s: float
    communication_s: float
    peak_bytes: tuple[int, ...]
    """By rank."""
    calls: dict[str, int]


@dataclass(frozen=True)
class Parts:
    """Seconds of one step on one rank: computation, copies that pack and unpack, and each
    collective in order; how often each was called."""

    compute_s: float
    copies_s: float
    collectives_s: tuple[float, ...]
    calls: dict[str, int]


def time_steps(
    step: Step,
    resident: Callable[[], Any],
    device: torch.device,
    *,
    warm_up: int,
    steps: int,
    one_program: bool = True,
    least_timed: int = LEAST_TIMED,
) -> StepTimes:
    """Runs `step` on every rank: `warm_up` + `steps` ordinary ones, some timed alone, one followed.

    `resident` returns what is in memory between two steps: parameters, optimizer state, inputs.
    `one_program` says whether all ranks run the same operators, `least_timed` how many steps at
    least are timed alone.
    """
    for _ in range(warm_up):
        step()
    ordinary = [_seconds(step, device) for _ in range(steps)]
    parts = [_parts(step, device, one_program) for _ in range(max(steps // 2, least_timed))]
    peak = _peak(step, resident, device)
    by_rank: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(by_rank, (ordinary, parts, peak))
    parts_by_rank = [parts for _, parts, _ in by_rank]
    return StepTimes(
        tuple(max(times) for times in zip(*(times for times, *_ in by_rank), strict=True)),
        mean(median(part.compute_s for part in parts) for parts in parts_by_rank),
        communication_s(parts_by_rank, one_program),
        tuple(int(bytes_) for *_, bytes_ in by_rank),
        parts[-1].calls,
    )


def _seconds(step: Step, device: torch.device) -> float:
    _wait(device)
    began = perf_counter()
    step()
    _wait(device)
    return perf_counter() - began


def communication_s(by_rank: Sequence[Sequence[Parts]], one_program: bool) -> float:
    """Returns the seconds of a step's communication, by each rank's steps.

    Where all ranks run one program they call the same collectives, and one takes as long as on its
    slowest rank, for which the next ones wait: siblings on one network card are not done together.
    """
    slowest = [
        [max(times) for times in zip(*(part.collectives_s for part in step), strict=one_program)]
        for step in zip(*by_rank, strict=True)
    ]
    return mean(
        median(
            part.copies_s + sum(shared if one_program else part.collectives_s)
            for part, shared in zip(parts, slowest, strict=True)
        )
        for parts in by_rank
    )


def _parts(step: Step, device: torch.device, one_program: bool) -> Parts:
    dist.barrier()
    with CommunicationClock(device, everyone=one_program) as clock:
        total = _seconds(step, device)
    return Parts(
        total - clock.seconds - clock.waited_s,
        clock.seconds - sum(clock.collectives_s),
        tuple(clock.collectives_s),
        clock.calls,
    )


def _peak(step: Step, resident: Callable[[], Any], device: torch.device) -> int:
    if device.type == "cuda":
        _wait(device)
        torch.cuda.reset_peak_memory_stats(device)
        step()
        return int(torch.cuda.max_memory_allocated(device))
    tracker = AllocationTracker()
    tracker.follow(tree_leaves(resident()), "there before the step")
    with tracker:
        step()
    return tracker.peak_bytes


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
