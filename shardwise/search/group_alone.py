"""The devices of one group alone: where that is faster than all together.

The mesh of several kinds has one axis over all blocks, so a group alone can be split in ways there
that the search of all does not have. Its own search, of devices of one kind, does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from shardwise.cost.options import Options, Progress
from shardwise.errors import NotFound, SolverError
from shardwise.hardware import Bundle, Hardware
from shardwise.search.chosen import Chosen, fastest
from shardwise.search.fitting import search_fitting
from shardwise.search.replayed import SEVERAL_KINDS_S
from shardwise.search.search import Search, Subject

SHARE = 0.15
"""Of the time limit of a question, what the search of one group may take."""


@dataclass(frozen=True)
class Alone:
    """The answer of one group: its name, its searches, and the fastest strategy that fits."""

    name: str
    searches: list[Search]
    best: Chosen


def fastest_alone(
    subject: Subject, hardware: Hardware, bundle: Bundle, options: Options, progress: Progress
) -> Alone | None:
    """Returns the answer of the group that is fastest alone; None for a bundle of one group, and
    where none fits."""
    if len(bundle.counts) < 2:
        return None
    limit_s = SHARE * (options.time_limit_s or SEVERAL_KINDS_S)
    best: Alone | None = None
    for name, count in bundle.counts:
        try:
            found = search_fitting(
                subject,
                hardware.of_group(name),
                count,
                replace(options, time_limit_s=limit_s, policy=None),
                progress,
            )
        except (NotFound, SolverError):
            continue
        chosen = fastest(found)
        if chosen is not None and (best is None or chosen.ranking_s < best.best.ranking_s):
            best = Alone(name, found, chosen)
    return best
