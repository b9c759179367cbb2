"""Which cores a rank of a CPU computes on: the ranks of a host share its cores out.

Ranks that may run anywhere meet on one core while another is idle, and every collective then waits
for the later one: bound ranks trained a tenth to a third faster on two cores, and more evenly.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from shardwise.measure.memory import keep_freed_memory

SET_BY_OTHERS = ("SLURM_CPU_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
"""Who sets one of these has decided where ranks run."""
SWITCH = "SHARDWISE_BIND_CORES"
"""`no` leaves the ranks to the scheduler of the system."""


def allowed_cores() -> list[int]:
    """The cores that this process may use, in order."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def share_of(cores: Sequence[int], rank: int, ranks: int) -> tuple[int, ...]:
    """The cores of local rank `rank` of `ranks`: neighbours, evenly; one core where ranks are more.

    >>> share_of([0, 1, 2, 3], 1, 2), share_of([0, 1], 2, 4)
    ((2, 3), (0,))
    """
    if ranks > len(cores):
        return (cores[rank % len(cores)],)
    first, last = (len(cores) * part // ranks for part in (rank, rank + 1))
    return tuple(cores[first:last])


def bind_cores(rank: int, ranks: int, environment: Mapping[str, str] = os.environ) -> int:
    """Bind this process, all its threads, to its share of the cores that it may use; their number.

    Does nothing where the cores are bound already, where `SHARDWISE_BIND_CORES` is `no`, and on
    systems that bind no cores.
    """
    allowed = allowed_cores()
    if not hasattr(os, "sched_setaffinity") or environment.get(SWITCH) == "no":
        return max(len(allowed) // ranks, 1)
    if any(environment.get(name) for name in SET_BY_OTHERS):
        return len(allowed)
    mine = share_of(allowed, rank, ranks)
    for thread in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):  # a thread that has ended meanwhile
            os.sched_setaffinity(int(thread.name), mine)
    return len(mine)


def settle_on_cpu(rank: int, ranks: int) -> int:
    """Keep freed memory and bind local rank `rank` of `ranks`; how many cores it has."""
    keep_freed_memory()
    return bind_cores(rank, ranks)
