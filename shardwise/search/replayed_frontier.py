"""The frontier of replayed peak and time, with a proven error.

For each micro-batch count that may have points, the fastest strategy of all memories is searched as
in `replayed.py`, then that of the least memory. Between them a frontier of the game's time charges
and surely held memory is tracked. Games under some memory limits between the ends then add bounds,
which are lines over memory, and strategies. All are replayed; the non-dominated ones are kept.
"""

from __future__ import annotations

from math import inf

import numpy as np

from shardwise.cost.options import Options, Progress, quiet
from shardwise.errors import Cancelled, SolverError
from shardwise.hardware import Devices, Hardware
from shardwise.search.count import Count, Effort
from shardwise.search.gaps import unbeaten
from shardwise.search.mixed.search import Propose
from shardwise.search.replayed import answered, check_replayed, drafted, watch_of
from shardwise.search.search import Search, Subject
from shardwise.search.watch import OutOfTime, Watch

LIMITS = 8
"""Number of limits with games, between the ends of the frontier."""
MOST_PLAYS = 2
"""Number of micro-batch counts played under one limit."""
FREE = Effort(queries=12, frontiers=0, rounds=6)
QUICK = Effort(queries=6, frontiers=0, rounds=3)
DRAFTS, ENDS = 0.1, 0.5
"""Shares of the progress when costs are computed, and when both ends are known."""


def search_replayed_frontier(
    subject: Subject,
    hardware: Hardware,
    gpus: Devices,
    options: Options,
    progress: Progress = quiet,
    propose: Propose | None = None,
) -> list[Search]:
    """Returns one search per micro-batch count, with its proof.

    The non-dominated points of all of them are the frontier. Raises as `search` does, and
    `SolverError` if the time limit passed before there was any; several kinds have at least
    `FIRST_ANSWER_S` for it.
    """
    watch = watch_of(gpus, options, progress)
    part = watch.part(0.0, DRAFTS)
    counts = drafted(subject, hardware, gpus, options, part, propose=propose)
    try:
        _find_ends(counts, watch.part(DRAFTS, ENDS))
        _narrow(counts, options.epsilon, watch.part(ENDS, 1.0))
    except OutOfTime:
        _end(counts, "budget")
        if watch.strict and not any(count.pool for count in counts):
            counts[0].begin()
    except Cancelled:
        if not any(count.pool for count in counts):
            raise
        _end(counts, "cancelled")
    found = answered(counts)
    check_replayed(found)
    return found


def _end(counts: list[Count], status: str) -> None:
    for count in counts:
        count.status = status


def _find_ends(counts: list[Count], watch: Watch) -> None:
    """Finds each count's fastest strategy of all memories, and its least memory."""
    best_s, first = inf, None
    for place, count in enumerate(counts):
        count.watch = watch.part(place / len(counts), (place + 1) / len(counts))
        count.watch.go_on("bounding", 0.0)
        count.first = first
        count.search_within(inf, best_s, FREE)
        best_s = min(best_s, count.time_within(inf))
        first = count.best_query or first
        try:
            count.find_least()
            least_bytes = count.proof.least_bytes
            others_s = min(
                (other.time_within(least_bytes) for other in counts[:place]), default=inf
            )
            if count.least_s < others_s:
                count.track()
        except SolverError:
            count.status = "budget"


def _narrow(counts: list[Count], epsilon: float, watch: Watch) -> None:
    """Plays under limits between the ends, each with the counts that may be faster within it."""
    known = [count.pool for count in counts if count.pool is not None]
    if not known:
        return
    peaks = np.concatenate([pool.peak_bytes for pool in known])
    times = np.concatenate([pool.time_s for pool in known])
    kept = unbeaten(peaks, times)
    limits = np.geomspace(peaks[kept[-1]], peaks[kept[0]], LIMITS + 2)[1:-1].tolist()
    for place, limit in enumerate(limits):
        part = watch.part(place / LIMITS, (place + 1) / LIMITS)
        order = sorted(counts, key=lambda count: count.bound_s(limit))
        for turn, count in enumerate(order[:MOST_PLAYS]):
            count.watch = part.part(turn / MOST_PLAYS, (turn + 1) / MOST_PLAYS)
            count.watch.go_on("bounding", 0.0)
            best_s = min(other.time_within(limit) for other in counts)
            count.search_within(limit, best_s / (1.0 + 0.5 * epsilon), QUICK)
