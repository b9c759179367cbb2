"""The devices of one group alone, for cases where that beats all together.

A mesh of several kinds has one axis over all blocks, so it lacks some splits of a single group. A
separate search on devices of one kind has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from shardwise.cost.options import Options, Progress, quiet
from shardwise.errors import NotFound, SolverError
from shardwise.hardware import Devices, Hardware
from shardwise.search.chosen import Chosen, fastest
from shardwise.search.fitting import search_fitting
from shardwise.search.mixed.search import Propose
from shardwise.search.replayed import check_replayed, search_replayed, time_limit_s
from shardwise.search.search import Search, Subject
from shardwise.search.watch import Watch

TOGETHER, ALONE = 0.8, 0.95
"""Shares of the time limit at which the search of all groups together ends, and those of each group
alone; the rest is for the answer."""


@dataclass(frozen=True)
class Alone:
    """The answer of one group: its name, its searches, and the fastest strategy that fits."""

    name: str
    searches: list[Search]
    best: Chosen


def search_bundle(
    subject: Subject,
    hardware: Hardware,
    bundle: Devices,
    options: Options,
    progress: Progress = quiet,
    propose: Propose | None = None,
) -> tuple[list[Search], Alone | None]:
    """Returns the searches of all groups together near the limit, and one group's answer if that is
    faster.

    Both share the time limit; `propose` is as in `search_fitting`. Raises as that does, and
    `SolverError` if the limit passed before any strategy was replayed.
    """
    limit_s = time_limit_s(bundle, options) or inf
    watch = Watch(progress, ALONE * limit_s)
    several = len(bundle.counts) > 1
    within = replace(options, time_limit_s=(TOGETHER if several else ALONE) * limit_s)
    searches: list[Search] = []
    reason: SolverError | None = None
    try:
        searches = search_fitting(subject, hardware, bundle, within, progress, propose)
        check_replayed(searches)
    except SolverError as out_of_time:
        if not several:
            raise
        reason = out_of_time
    alone = fastest_alone(subject, hardware, bundle, options, watch, searches)
    if alone is None and reason is not None:
        raise reason
    return searches, alone


def fastest_alone(
    subject: Subject,
    hardware: Hardware,
    bundle: Devices,
    options: Options,
    watch: Watch,
    together: Sequence[Search] = (),
) -> Alone | None:
    """Returns the answer of the fastest group alone; None for a bundle of one group, if none fits,
    and if none beats the searches of all `together`.

    Skips groups proven no faster; each group gets its part of the remaining time.
    """
    if len(bundle.counts) < 2:
        return None
    known = fastest(together)
    best_s = inf if known is None else known.ranking_s
    best: Alone | None = None
    for place, (name, count) in enumerate(bundle.counts):
        try:
            found = search_replayed(
                subject,
                hardware.of_group(name),
                Devices.alike(count),
                replace(
                    options, time_limit_s=watch.left_s / (len(bundle.counts) - place), policy=None
                ),
                watch.report,
                cutoff_s=best_s,
                strict=True,
            )
        except (NotFound, SolverError):
            continue
        chosen = fastest(found)
        if chosen is not None and chosen.ranking_s < best_s:
            best, best_s = Alone(name, found, chosen), chosen.ranking_s
    return best
