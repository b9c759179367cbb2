"""How many processes a command starts."""

from __future__ import annotations

import os

from shardwise.measure.cores import allowed_cores

MEMORY_OF_PROCESS = 3 << 30
"""Bytes that have to be free for each process: a plan of Llama 3 70B on 64 GPUs takes 1.9 GB."""


def processes_for(threads: int) -> int:
    """Returns how many processes compute counts at a time: as many as `threads` (0: as there are
    cores), and as there is memory for."""
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):  # not every system says so
        free = 0
    return max(min(threads or len(allowed_cores()), free // MEMORY_OF_PROCESS), 1)
