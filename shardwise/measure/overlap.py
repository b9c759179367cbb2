"""How much a collective and computation slow each other down (HeteroG §3.3; TensorOpt §3.2).

Replay runs both streams at full speed side by side. Here both really run together: products for
about as long as a collective takes alone, then both at once.

    hidden fraction = (t_products + t_collective - t_together) / min(t_products, t_collective)

It is 1 if neither slows the other, 0 if the two take turns.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np

from shardwise.hardware.hardware import Overlap
from shardwise.measure.exchange import ITEM_BYTES
from shardwise.measure.rank import Rank

OPERATION = "all_reduce"
LONG_ENOUGH_S = 0.02
SMALLEST_BYTES, LARGEST_BYTES = 2**20, 2**28
SIDE = 512
REPEATS = 9
MOST_PRODUCTS = 10_000


def measure_overlap(rank: Rank, group: Any, memory_bytes: float, limit_s: float) -> Overlap:
    """Runs an all_reduce of all ranks next to matrix products; medians of the slowest rank's times.

    `group` contains all ranks; `memory_bytes` is what this rank's buffers may take; `limit_s`
    bounds the time.
    """
    began = perf_counter()
    torch = rank.torch
    size, buffer = SMALLEST_BYTES, torch.zeros(SMALLEST_BYTES // ITEM_BYTES, device=rank.device)

    def exchange() -> Any:
        return torch.distributed.all_reduce(buffer, group=group, async_op=True)

    communication_s = _alone(rank, lambda: exchange().wait(), 2)
    most = min(LARGEST_BYTES, memory_bytes / 4)
    # Enough time must remain to time one size, alone and together, many times over.
    while (
        communication_s < LONG_ENOUGH_S
        and size * 2 <= most
        and communication_s * 12 * REPEATS < limit_s
    ):
        size *= 2
        buffer = torch.zeros(size // ITEM_BYTES, device=rank.device)
        communication_s = _alone(rank, lambda: exchange().wait(), 2)
    left, right = (torch.ones(SIDE, SIDE, device=rank.device) for _ in range(2))
    out = torch.empty(SIDE, SIDE, device=rank.device)

    def products(count: int) -> None:
        for _ in range(count):
            torch.mm(left, right, out=out)

    one = _alone(rank, lambda: products(4), 3) / 4
    count = min(max(round(communication_s / one), 1), MOST_PRODUCTS)
    rounds = []
    for _ in range(REPEATS):
        rounds.append(
            rank.worst(
                [
                    _alone_here(rank, lambda: products(count)),
                    _alone_here(rank, lambda: exchange().wait()),
                    *_together(rank, lambda: products(count), exchange),
                ]
            )
        )
        if float(rank.worst([perf_counter() - began])[0]) > limit_s:
            break
    compute_s, communication_s, both_s, compute_overlapped_s, communication_overlapped_s = (
        np.median(rounds, axis=0)
    )
    hidden = (compute_s + communication_s - both_s) / min(compute_s, communication_s)
    return Overlap(
        float(np.clip(hidden, 0.0, 1.0)),
        float(compute_overlapped_s / compute_s),
        float(communication_overlapped_s / communication_s),
        OPERATION,
        float(size),
    )


def _alone(rank: Rank, call: Callable[[], None], repeats: int) -> float:
    """Returns the median of the slowest rank's times, after one warm-up call."""
    call()
    return float(np.median([rank.worst([_alone_here(rank, call)])[0] for _ in range(repeats)]))


def _alone_here(rank: Rank, call: Callable[[], None]) -> float:
    rank.barrier()
    return rank.time(call)


def _together(
    rank: Rank, compute: Callable[[], None], exchange: Callable[[], Any]
) -> tuple[float, float, float]:
    """Returns (both, computation, collective): seconds from their common start to each end."""
    rank.barrier()
    if rank.on_gpu:
        return _together_on_gpu(rank, compute, exchange)
    ended: list[float] = []
    began = perf_counter()
    pending = exchange()
    pending.get_future().then(lambda _: ended.append(perf_counter()))
    compute()
    computed = perf_counter() - began
    pending.wait()
    both = perf_counter() - began
    communicated = (ended[0] - began) if ended else both
    return max(both, computed, communicated), computed, communicated


def _together_on_gpu(
    rank: Rank, compute: Callable[[], None], exchange: Callable[[], Any]
) -> tuple[float, float, float]:
    cuda = rank.torch.cuda
    start, computed, communicated = (cuda.Event(enable_timing=True) for _ in range(3))
    start.record()
    pending = exchange()
    compute()
    computed.record()
    # Another stream waits for the collective, so that its end is timed apart from computation's.
    waiting = cuda.Stream()
    with cuda.stream(waiting):
        pending.wait()
        communicated.record()
    cuda.current_stream().wait_stream(waiting)
    cuda.synchronize(rank.device)
    seconds = [float(start.elapsed_time(event)) / 1e3 for event in (computed, communicated)]
    return max(seconds), seconds[0], seconds[1]
