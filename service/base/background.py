"""Lets processes that compute give way to those that a caller is waiting on."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

SHORT_SOLVE, LONG_SOLVE, READING = 0, 10, 10
"""Niceness of each kind of process; the service itself stays at 0."""


def give_way(by: int) -> None:
    """Lowers the priority of this process, which leads a session of its own.

    Outside control groups Linux shares the processor among sessions first, each with a
    priority of its own (sched(7), "The autogroup feature"), and `nice` counts within one alone.
    """
    os.nice(by)
    if sys.platform == "linux":
        with suppress(OSError):
            Path("/proc/self/autogroup").write_text(str(by))
