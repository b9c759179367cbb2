"""The search for the shortest time under a memory limit that replayed steps have to keep.

The solver looks near a sum of memory; the limit is on the replayed peak. The first search aims the
sum at the limit itself; by how far the peaks found there miss the limit, the next aims higher or
lower.
"""

from __future__ import annotations

import numpy as np

from shardwise import _core
from shardwise.advise.options import Options, Progress, quiet
from shardwise.advise.search import Search, Subject, search_all, search_near
from shardwise.errors import SolverError
from shardwise.hardware import Hardware

MOST_MOVES = 4
NEAR = 0.01
"""Relative: targets that are as good as one another; how much of the limit may stay unused."""


def search_fitting(
    subject: Subject,
    hardware: Hardware,
    gpus: int,
    options: Options,
    progress: Progress = quiet,
) -> list[Search]:
    """Searches near the limit, for every number of micro-batches; raises as `search` does."""
    found = search_all(subject, hardware, gpus, options, progress, near_limit=True)
    return [moved for first in found for moved in _moved(first, progress)]


def _moved(first: Search, progress: Progress) -> list[Search]:
    """The search and those after it, each near a sum of which the peak should meet the limit."""
    searches, targets = [first], [first.limit_bytes]
    if not isinstance(first.solution, _core.Solution):
        return searches
    for _ in range(MOST_MOVES):
        target, left = _next_target(searches[-1], targets), _time_left(searches)
        if target is None or (left is not None and left <= 0):
            break
        try:
            searches.append(search_near(first, target, left, progress))
        except SolverError:
            break  # out of time or memory: what there is already stands
        targets.append(target)
    return searches


def _next_target(found: Search, targets: list[float]) -> float | None:
    """Where the peaks found last say that the limit is; None when there is no need to look."""
    if found.solution.status == "cancelled" or len(found.time_s) == 0:
        return None
    limit, aimed = found.limit_bytes, targets[-1]
    peaks, sums = found.replayed.peak_bytes, found.memory_bytes
    if found.fits.any():
        if found.fits[np.argmin(found.time_s)] and sums.max() < aimed:
            return None  # the fastest strategy there is
        highest = float(peaks[found.fits].max())
        if highest > limit * (1.0 - NEAR):
            return None
        target = aimed * limit / highest
    elif sums.min() > aimed:
        return None  # nothing is leaner
    else:
        least = int(np.argmin(peaks))
        target = float(sums[least] * limit / peaks[least])
        # Clearly under all that were tried in vain.
        target = min(target, min(targets) * (1.0 - 2 * NEAR))
    return None if any(abs(target / other - 1.0) < NEAR for other in targets) else target


def _time_left(searches: list[Search]) -> float | None:
    limit = searches[0].options.time_limit_s
    if limit is None:
        return None
    return limit - sum(float(found.solution.seconds) for found in searches)
