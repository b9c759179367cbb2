"""The clock that leases and limits are judged by."""

from __future__ import annotations

import time


def now_s() -> float:
    """Returns seconds on a clock that changes of the wall clock do not move.

    A suspended host's sleep counts (Linux).

    CLOCK_MONOTONIC stops while a host sleeps: its agent would wake with leases that the service
    gave up long ago.
    """
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()
