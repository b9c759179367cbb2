"""The search for the shortest time under a memory limit on the replayed peak.

The solver searches near a sum of memory, but the limit is on the replayed peak. The first search
aims at the limit itself, later ones at the sum whose peak should meet the limit.
"""

from __future__ import annotations

from math import inf

import numpy as np

from shardwise.cost.options import TOFU, Options, Progress, quiet
from shardwise.errors import SolverError
from shardwise.hardware import Devices, Hardware
from shardwise.search.mixed.search import Propose
from shardwise.search.replayed import search_replayed
from shardwise.search.replayed_frontier import search_replayed_frontier
from shardwise.search.search import Search, Subject, search_all, search_near

MOST_MOVES = 6
NEAR = 0.01
"""Relative: the part of the limit that may stay unused, and the tolerance between targets."""
CLOSE = 1.25
"""If peaks exceed the limit by less than this factor, the whole frontier is searched."""


def search_fitting(
    subject: Subject,
    hardware: Hardware,
    gpus: Devices,
    options: Options,
    progress: Progress = quiet,
    propose: Propose | None = None,
    *,
    cutoff_s: float = inf,
) -> list[Search]:
    """Searches near the limit for every micro-batch count; raises as `search` does.

    Searches and proves the replayed time (`replayed.py`), or without `overlap` the sum. `propose`
    returns the policy's proposals. Strategies proven no faster than `cutoff_s` may be skipped.
    """
    if options.replays:
        return search_replayed(
            subject, hardware, gpus, options, progress, propose=propose, cutoff_s=cutoff_s
        )
    searches = search_all(subject, hardware, gpus.gpus, options, progress, near_limit=True)
    return [moved for first in searches for moved in _moved(first, progress)]


def search_frontier(
    subject: Subject,
    hardware: Hardware,
    gpus: Devices,
    options: Options,
    progress: Progress = quiet,
    propose: Propose | None = None,
) -> list[Search]:
    """Searches all memories for every micro-batch count; raises as `search` does.

    The frontier is that of replayed peak and time (`replayed_frontier.py`), or without `overlap`
    that of sums. `propose` returns the policy's proposals.
    """
    if options.replays:
        return search_replayed_frontier(subject, hardware, gpus, options, progress, propose)
    return search_all(subject, hardware, gpus.gpus, options, progress)


def _moved(first: Search, progress: Progress) -> list[Search]:
    """Returns the search and its successors, each near a sum whose peak should meet the limit."""
    searches, targets = [first], [first.limit_bytes]
    if first.options.method == TOFU:
        return searches
    for _ in range(MOST_MOVES):
        target = _next_target(searches, targets)
        if target is None or not _search_again(searches, target, progress):
            break
        targets.append(target)
    least = min(float(search.replayed.peak_bytes.min(initial=inf)) for search in searches)
    if first.limit_bytes < least < CLOSE * first.limit_bytes:
        # Sums and peaks are not monotone in each other: search everything before giving up.
        _search_again(searches, None, progress)
    return searches


def _search_again(searches: list[Search], near_bytes: float | None, progress: Progress) -> bool:
    left = _time_left(searches)
    if (left is not None and left <= 0) or searches[-1].solution.status == "cancelled":
        return False
    try:
        searches.append(search_near(searches[0], near_bytes, left, progress))
    except SolverError:
        return False  # out of time or memory: the earlier searches remain valid
    return True


def _next_target(searches: list[Search], targets: list[float]) -> float | None:
    """Returns a sum whose peak should meet the limit, by all searches so far; None if no further
    search is needed.

    It is interpolated between the largest sum that fits and the next larger one that does not.
    """
    limit = searches[0].limit_bytes
    sums = np.concatenate([search.memory_bytes for search in searches])
    peaks = np.concatenate([search.replayed.peak_bytes for search in searches])
    fits = peaks <= limit
    if len(sums) == 0 or fits.all() or (fits & (sums == sums.max())).any():
        return None  # no strategy at all, or the fastest one fits
    if not fits.any():
        smallest = int(np.argmin(sums))
        target = float(sums[smallest] * limit / peaks[smallest])
        return target if target > sums[smallest] and _is_new(target, targets) else None
    under = int(np.argmax(np.where(fits, sums, 0.0)))
    above = sums > sums[under]
    over = int(np.argmin(np.where(above, sums, inf)))
    if peaks[under] > limit * (1.0 - NEAR) or sums[over] < sums[under] * (1.0 + NEAR):
        return None
    share = (limit - peaks[under]) / (peaks[over] - peaks[under])
    # Not at an end of the interval, where a search would find nothing new.
    share = min(max(float(share), 0.1), 0.9)
    target = float(sums[under] + share * (sums[over] - sums[under]))
    return target if _is_new(target, targets) else None


def _is_new(target: float, targets: list[float]) -> bool:
    return all(abs(target / other - 1.0) >= NEAR for other in targets)


def _time_left(searches: list[Search]) -> float | None:
    limit = searches[0].options.time_limit_s
    if limit is None:
        return None
    return limit - sum(float(search.solution.seconds) for search in searches)
