"""What one device of a host can do: products, copies, the smallest operator.

All ranks measure at once, as in training: processes that share a machine's cores each get only part
of them. Each figure is that of the slowest rank.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from shardwise.hardware.device import Device
from shardwise.measure.rank import Rank

CPU_DTYPES = ("float32", "float64", "bfloat16")
GPU_DTYPES = ("float32", "float16", "bfloat16", "float64")
SMALLEST_SIDE, LARGEST_SIDE = 128, 8192
LONG_ENOUGH_S = 0.02
"""A product or copy that takes this long is large enough: its speed has reached its plateau."""

REPEATS = 7
LATENCY_REPEATS = 200


def measure_device(rank: Rank, memory_bytes: float, limit_s: float) -> Device:
    """Measures this rank's device; buffers may take `memory_bytes`, `limit_s` bounds the time.

    Peaks are the fastest repeat's, efficiencies the median's share of them, so peak times
    efficiency is what a large kernel usually reaches.
    """
    dtypes = GPU_DTYPES if rank.on_gpu else CPU_DTYPES
    began = perf_counter()
    peaks: dict[str, float] = {}
    reached: dict[str, float] = {}
    bandwidth, copies = _copies(rank, memory_bytes, limit_s / (len(dtypes) + 1))
    latency = _latency(rank)
    for number, dtype in enumerate(dtypes):
        left = rank.left_s(limit_s, began) / (len(dtypes) - number)
        if product := _products(rank, dtype, memory_bytes, left):
            peaks[dtype], reached[dtype] = product
    return Device(
        kind_of(rank),
        rank.world.ranks_per_node,
        _memory(rank),
        peaks,
        bandwidth,
        reached["float32"],
        copies,
        latency,
        {dtype: share for dtype, share in reached.items() if dtype != "float32"},
    )


def _repeated(rank: Rank, call: Callable[[], None]) -> Any:
    """Returns times of the slowest rank, (REPEATS,)."""
    call()
    seconds = []
    for _ in range(REPEATS):
        rank.barrier()
        seconds.append(rank.time_work(call))
    return rank.worst(seconds)


def _grown(
    rank: Rank, start: int, largest: int, make: Callable[[int], Callable[[], None]], limit_s: float
) -> tuple[int, Callable[[], None]]:
    """Returns the first of start, 2 start, … whose call takes long enough, and the call."""
    size = start
    while True:
        call = make(size)
        call()
        took = float(rank.worst([rank.time_work(call)])[0])
        # Eight times the work, REPEATS times.
        if took >= LONG_ENOUGH_S or size * 2 > largest or took * 8 * (REPEATS + 2) > limit_s:
            return size, call
        size *= 2


def _products(
    rank: Rank, dtype: str, memory_bytes: float, limit_s: float
) -> tuple[float, float] | None:
    """Returns (peak flops per second, the median's share of it) of square matrix products."""
    torch = rank.torch
    kind = getattr(torch, dtype)

    def make(side: int) -> Callable[[], None]:
        # Of ones a GPU takes less power, and keeps higher clocks than training does.
        left, right = (torch.randn(side, side, device=rank.device).to(kind) for _ in range(2))
        out = torch.empty(side, side, dtype=kind, device=rank.device)
        return lambda: torch.mm(left, right, out=out)

    most = min(LARGEST_SIDE, int((memory_bytes / 3 / kind.itemsize) ** 0.5))
    side, call = _grown(rank, SMALLEST_SIDE, max(most, SMALLEST_SIDE), make, limit_s)
    seconds = _repeated(rank, call)
    work = 2.0 * side**3
    return work / float(seconds.min()), float(seconds.min() / np.median(seconds))


def _copies(rank: Rank, memory_bytes: float, limit_s: float) -> tuple[float, float]:
    """Returns (bytes per second read and written by a large copy, the median's share of it)."""
    torch = rank.torch

    def make(size: int) -> Callable[[], None]:
        source, target = (
            torch.zeros(size, dtype=torch.uint8, device=rank.device) for _ in range(2)
        )
        return lambda: target.copy_(source)

    # Beyond the caches of a host: 64 MiB and more, if memory allows.
    most = int(memory_bytes / 2)
    start = min(2**26, most)
    size, call = _grown(rank, start, most, make, limit_s)
    seconds = _repeated(rank, call)
    return 2.0 * size / float(seconds.min()), float(seconds.min() / np.median(seconds))


def _latency(rank: Rank) -> float:
    """Returns the device's seconds of the smallest operator, many in a row: what a GPU takes when
    it need not wait for the host, whose time is `host.operator_s`."""
    torch = rank.torch
    one = torch.zeros(16, device=rank.device)
    call: Callable[[], None] = lambda: one.add_(1.0)  # noqa: E731
    rank.time(call, LATENCY_REPEATS)
    rank.barrier()
    times = []
    for _ in range(3):
        rank.pause(LATENCY_REPEATS)
        times.append(rank.worst([rank.time_work(call, LATENCY_REPEATS)])[0])
    return float(np.median(times))


def kind_of(rank: Rank) -> str:
    """Returns the kind of a rank's device: its label, else the device's own name."""
    if rank.label.kind:
        return rank.label.kind
    if rank.on_gpu:
        return str(rank.torch.cuda.get_device_name(rank.device))
    return cpu_kind(rank.torch.get_num_threads())


def cpu_kind(threads: int) -> str:
    """Describes a CPU as a device: what one rank has of it."""
    return f"CPU {processor()}, {threads} thread{'s' if threads > 1 else ''}"


def _memory(rank: Rank) -> float:
    """Returns the bytes of one device; a host's memory is shared by its ranks."""
    if rank.on_gpu:
        return float(rank.torch.cuda.get_device_properties(rank.device).total_memory)
    return total_memory() / rank.world.ranks_on_host


def free_memory(rank: Rank) -> float:
    """Returns the bytes free now: of this rank's GPU, or of the host shared by its ranks."""
    if rank.on_gpu:
        return float(rank.torch.cuda.mem_get_info(rank.device)[0])
    return _meminfo("MemAvailable") / rank.world.ranks_on_host


def total_memory() -> float:
    """Returns the bytes of this host."""
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def _meminfo(field: str) -> float:
    listing = Path("/proc/meminfo")
    if listing.exists():
        for line in listing.read_text().splitlines():
            if line.startswith(f"{field}:"):
                return float(line.split()[1]) * 1024
    return total_memory() / 2


def processor() -> str:
    """Returns the name of this host's processor."""
    listing = Path("/proc/cpuinfo")
    if listing.exists():
        for line in listing.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
