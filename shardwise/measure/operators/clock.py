"""Times one call with memory as in a training step, and decides how often to repeat it.

Before each repetition the caches are flushed by writing a buffer larger than the last-level cache
(`flushed`); then what the previous operator would just have made is touched: the activation in
forward, the gradient in backward. Weights and saved tensors come from memory. A model that fits
into the cache as a whole is measured without flushing: everything stays there.

Repetitions go on until the median is known to `PRECISION` (its standard error, estimated from the
quartiles), or the time for the call is used up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np

PRECISION = 0.01
FEWEST, MOST = 5, 200
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
CACHE_BYTES = 32 * 2**20
"""The last-level cache size if the system does not report it."""

WAIT_CYCLES = 400_000
"""Keeps a GPU busy while a call is launched, so that events time only the kernel."""


@dataclass(frozen=True)
class Timing:
    """A call's median time, half the quartile distance relative to it, and the repetitions."""

    time_s: float
    spread: float
    repetitions: int


def cache_bytes(torch: Any, device: Any) -> int:
    """Returns the size of a device's last-level cache."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).L2_cache_size)
    sizes = [_size(path.read_text()) for path in sorted(CACHES.glob("index*/size"))]
    return max(sizes, default=CACHE_BYTES)


def _size(text: str) -> int:
    """Returns a size such as `32768K` in bytes."""
    unit = {"K": 2**10, "M": 2**20, "G": 2**30}.get(text.strip()[-1:], 1)
    return int(text.strip().rstrip("KMG")) * unit


class Clock:
    """Times single calls on one device."""

    def __init__(self, torch: Any, device: Any, *, flushed: bool, own_time: bool = False) -> None:
        self.torch = torch
        self.device = device
        self.flushed = flushed
        self._now = process_time if own_time else perf_counter
        # Twice the cache: a cache that does not evict in order keeps part of one buffer.
        size = 2 * cache_bytes(torch, device) if flushed else 0
        self._buffer = torch.zeros(size // 4, dtype=torch.float32, device=device)

    def once(self, call: Callable[[], object], touched: Sequence[Any] = ()) -> float:
        """Returns seconds of one call."""
        if self.flushed:
            self._buffer.add_(1.0)
            for tensor in touched:
                tensor.detach().clone()
        if self.device.type != "cuda":
            began = self._now()
            call()
            return self._now() - began
        start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.torch.cuda._sleep(WAIT_CYCLES)
        start.record()
        call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3

    def slower(self, call: Callable[[], object], touched: Sequence[Any], times: Fraction) -> float:
        """Returns seconds of one call that is `times` as slow (`slowed.py`).

        It runs again whole, without another flush, and of the last run that part counts which is
        left.
        """
        whole, part = divmod(times - 1, 1)
        seconds = self.once(call, touched)
        flushed, self.flushed = self.flushed, False
        seconds += sum(self.once(call) for _ in range(int(whole)))
        if part:
            seconds += float(part) * self.once(call)
        self.flushed = flushed
        return seconds

    def repeat(
        self,
        call: Callable[[], object],
        touched: Sequence[Any],
        budget_s: float,
        slowed: Fraction | None = None,
    ) -> list[float]:
        """Returns seconds of repetitions until their median is stable or the budget is used up.

        `slowed`: how many times as slow each is to be.
        """
        began = perf_counter()
        self.once(call, touched)  # the first call compiles, allocates, chooses algorithms
        times: list[float] = []
        while len(times) < MOST:
            times.append(self.slower(call, touched, slowed or Fraction(1)))
            if len(times) < FEWEST:
                continue
            if perf_counter() - began > budget_s or standard_error(times) < PRECISION:
                break
        return times


def standard_error(times: Sequence[float]) -> float:
    """Returns the median's relative standard error: 1.25 σ / √n with σ from the quartiles."""
    low, middle, high = np.percentile(times, (25, 50, 75))
    return float(1.2533 * (high - low) / 1.349 / middle / len(times) ** 0.5)


def timing(times: Sequence[float], overhead_s: float = 0.0) -> Timing:
    """Returns the timing of repetitions; `overhead_s` is spent on calling, not in the call.

    At most half of the median is attributed to overhead.
    """
    low, middle, high = np.percentile(times, (25, 50, 75))
    net = max(middle - overhead_s, middle / 2)
    return Timing(float(net), float((high - low) / 2 / middle), len(times))
