"""Lets processes that compute give way to those that somebody is waiting on."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

SHORT_SOLVE, LONG_SOLVE, READING = 0, 10, 10
"""By how much each gives way, as `nice` counts: the service itself stays at 0."""


def give_way(by: int) -> None:
    """Lowers the priority of this process, which leads a session of its own.

    Outside of control groups Linux shares the processor among sessions first, each with a
    priority of its own (sched(7), "The autogroup feature"), and `nice` counts within one alone.
    """
    os.nice(by)
    if sys.platform == "linux":
        with suppress(OSError):
            Path("/proc/self/autogroup").write_text(str(by))
