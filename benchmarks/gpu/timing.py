"""Seconds of calls on a device, with or without what launching them takes."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

from shardwise.measure.host import launched_s

PAUSE_CYCLES = 200_000
"""How long a GPU waits for each call to be launched behind the last: some 100 µs."""
LONG_S = 2e-3
MOST_CALLS, REPEATS = 20, 7

Call = Callable[[], object]


class Timer:
    """Times calls on a GPU, or on the CPU."""

    def __init__(self, torch: Any, on_gpu: bool) -> None:
        self._cuda = torch.cuda if on_gpu else None

    def wait(self) -> None:
        """Returns when the device has done all that was launched."""
        if self._cuda:
            self._cuda.synchronize()

    def launched(self, call: Call, calls: int = 1) -> float:
        """Returns the seconds of one of `calls`, launched without waiting in between."""
        return launched_s(call, self.wait, calls)

    def seconds(self, call: Call, calls: int = 1) -> float:
        """Returns the device's seconds of one of `calls`; a GPU begins when all are launched."""
        if not self._cuda:
            return self.launched(call, calls)
        start, end = (self._cuda.Event(enable_timing=True) for _ in range(2))
        self._cuda._sleep(PAUSE_CYCLES * (calls + 4))
        start.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3 / calls

    def typical(self, call: Call) -> float:
        """Returns the median seconds of a call; short ones are timed several in a row."""
        call()  # chooses an algorithm, allocates
        calls = min(max(int(LONG_S / max(self.seconds(call), 1e-7)), 1), MOST_CALLS)
        return median(self.seconds(call, calls) for _ in range(REPEATS))
