"""Recomputation of some blocks, where all of them would be more than memory takes.

A strategy that does not fit without recomputation and fits with that of every block needs it of
some blocks alone: of the fewest with which it still fits. Fewer recomputed blocks keep more and
take less time, so that number is bisected, one replay at a time, and only where the strategy
without any recomputation is faster than the fastest that fits. Which blocks are recomputed is the
trainer's form, `Layers`: a mask over the choices of full recomputation (`peers/practices.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from math import inf
from typing import Literal

from msgspec.structs import replace

from shardwise.cost.options import Progress, go_on
from shardwise.documents.parallelism import Parallelism
from shardwise.peers.methods import STAGE
from shardwise.peers.practices import Practices
from shardwise.peers.practitioners import Practised, practitioners, replayed
from shardwise.replay.replay import Replayer

Layers = Literal["all", "first", "every"]
"""Which blocks a trainer recomputes if not all: none but all, the first ones, every n-th."""


class Parts:
    """The strategies of one problem in which some blocks run again."""

    def __init__(self, replayer: Replayer, limit_bytes: float, progress: Progress) -> None:
        self._replayer = replayer
        self._limit_bytes = limit_bytes
        self._progress = progress
        self._practices = Practices(replayer.problem, progress)

    def of(self, partial: Parallelism) -> Practised | None:
        """Returns a strategy replayed, with its smallest copies where the fastest do not fit; None
        where the problem does not have it."""
        go_on(self._progress, STAGE, 0.0)
        practices = practitioners(
            self._replayer.problem,
            self._progress,
            allowed=lambda one: False,
            partial=(partial,),
            practices=self._practices,
        )
        known = replayed(self._replayer, practices, self._limit_bytes)
        return min(known, key=lambda one: one.rank(self._limit_bytes), default=None)

    def fewest(self, full: Parallelism, layers: Layers) -> Practised | None:
        """Returns the strategy that recomputes the fewest blocks and fits, None where only all of
        them or none that is known do."""
        choices = parts_of(full, layers, self._practices.blocks)
        low, high, best = 0, len(choices), None
        while low < high:
            middle = (low + high) // 2
            one = self.of(choices[middle])
            if one is not None and one.step.peak_bytes <= self._limit_bytes:
                high, best = middle, one
            else:
                low = middle + 1
        return best


def parts_of(full: Parallelism, layers: Layers, blocks: int) -> Sequence[Parallelism]:
    """Returns a strategy with the recomputation of some blocks, the fewest first."""
    if layers == "first":
        return [replace(full, recompute_layers=count) for count in range(1, blocks)]
    if layers == "every":
        # Of numbers that leave as many blocks, the least.
        each = {blocks // number: number for number in range(blocks, 1, -1)}
        return [replace(full, recompute_every=number) for number in each.values()]
    return []


def with_parts(
    known: Collection[Practised],
    replayers: Iterable[Replayer],
    limit_bytes: float,
    layers: Layers,
    progress: Progress,
) -> list[Practised]:
    """Returns the strategies with part of the blocks recomputed that are faster than all that are
    known to fit."""
    if layers == "all":
        return []
    of_problem = {id(one.problem): Parts(one, limit_bytes, progress) for one in replayers}
    steps = {one.practice.parallelism: one for one in known}
    fits = [one.step.time_s for one in known if one.step.peak_bytes <= limit_bytes]
    fastest_s = min(fits, default=inf)
    found: list[Practised] = []
    for none in sorted(known, key=lambda one: one.step.time_s):
        own = none.practice.parallelism
        full = steps.get(replace(own, recompute="full"))
        if own.recompute != "none" or none.step.peak_bytes <= limit_bytes or full is None:
            continue
        if none.step.time_s >= fastest_s:
            break
        if full.step.peak_bytes <= limit_bytes:
            one = of_problem[id(full.problem)].fewest(full.practice.parallelism, layers)
            if one is not None:
                found.append(one)
                fastest_s = min(fastest_s, one.step.time_s)
    return found
