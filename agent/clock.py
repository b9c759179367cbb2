"""The clock that leases and limits are judged by."""

from __future__ import annotations

import time


def now_s() -> float:
    """Returns seconds that no change of the wall clock moves.

    A suspended host's sleep counts (Linux).

    CLOCK_MONOTONIC stands still while a host sleeps: its agent would wake with leases that the
    service has long given up.
    """
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()
