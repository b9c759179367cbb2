"""One training step of a plan, measured: iteration time, its two parts, peak memory.

There are three kinds of steps, after a warm-up:

    ordinary        iteration time: the slowest rank's in each step, the median over the steps
    timed alone     communication: seconds in collectives with nothing overlapping (TensorOpt
                    Eq. 2 and 3); computation: the rest, without waiting; means over the ranks
    followed        peak memory: for each rank, the most that its tensors take at once
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
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
    mine = (
        ordinary,
        median(compute for compute, _, _ in parts),
        median(communication for _, communication, _ in parts),
        peak,
    )
    dist.all_gather_object(by_rank, mine)
    return StepTimes(
        tuple(max(times) for times in zip(*(times for times, *_ in by_rank), strict=True)),
        sum(compute for _, compute, _, _ in by_rank) / len(by_rank),
        sum(communication for _, _, communication, _ in by_rank) / len(by_rank),
        tuple(int(bytes_) for *_, bytes_ in by_rank),
        parts[-1][2],
    )


def _seconds(step: Step, device: torch.device) -> float:
    _wait(device)
    began = perf_counter()
    step()
    _wait(device)
    return perf_counter() - began


def _parts(
    step: Step, device: torch.device, one_program: bool
) -> tuple[float, float, dict[str, int]]:
    """Returns computation and communication of one step, in seconds, and its collectives."""
    dist.barrier()
    with CommunicationClock(device, everyone=one_program) as clock:
        total = _seconds(step, device)
    return total - clock.seconds - clock.waited_s, clock.seconds, clock.calls


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
