"""The number of processes that a command starts."""

from __future__ import annotations

import os

from shardwise.measure.cores import allowed_cores

MEMORY_OF_PROCESS = 3 << 30
"""Free memory needed per process, in bytes: a plan of Llama 3 70B on 64 GPUs takes 1.9 GB."""


def processes_for(threads: int) -> int:
    """Returns the number of processes for counts: `threads` (0: the number of cores), limited by
    free memory."""
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):  # not every system says so
        free = 0
    return max(min(threads or len(allowed_cores()), free // MEMORY_OF_PROCESS), 1)
