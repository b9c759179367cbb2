"""Recomputation of some blocks, where all of them would be more than memory takes.

A strategy that does not fit without recomputation and fits with that of every block needs it of
some blocks alone: of the fewest with which it still fits. Fewer recomputed blocks keep more and
take less time, so that number is bracketed, one replay at a time, and only where the strategy
without any recomputation is faster than the fastest that fits. Which blocks are recomputed is the
trainer's form, `Layers`: a mask over the choices of full recomputation (`peers/practices.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from math import ceil, inf
from typing import Literal, NamedTuple, TypeVar

from msgspec.structs import replace

from shardwise.documents.parallelism import Parallelism

Layers = Literal["all", "first", "every"]
"""Which blocks a trainer recomputes if not all: none but all, the first ones, every n-th."""

Strategy = TypeVar("Strategy")
"""What was replayed: a strategy of a problem, or a pipeline."""


_STRAIGHT = 3
"""Replays that take the peak for a straight line in the number of blocks; later ones bisect."""


class Tried(NamedTuple):
    """A strategy as it was replayed; `over_bytes` is how far its peak is above the limit."""

    parallelism: Parallelism
    time_s: float
    over_bytes: float

    @property
    def fits(self) -> bool:
        return self.over_bytes <= 0.0


def parts_of(full: Parallelism, layers: Layers, blocks: int) -> Sequence[Parallelism]:
    """Returns a strategy with the recomputation of some blocks, the fewest first."""
    if layers == "first":
        return [replace(full, recompute_layers=count) for count in range(1, blocks)]
    if layers == "every":
        # Of numbers that leave as many blocks, the least.
        each = {blocks // number: number for number in range(blocks, 1, -1)}
        return [replace(full, recompute_every=number) for number in each.values()]
    return []


def fewest(
    parts: Sequence[Parallelism],
    none: Tried,
    full: Tried,
    replayed: Callable[[Parallelism], Strategy | None],
    tried: Callable[[Strategy], Tried],
) -> Strategy | None:
    """Returns the first of the parts that fits, None where none is found. `none` recomputes no
    block and does not fit, `full` all and does."""
    low, high, best = 0, len(parts), None
    above, below = none.over_bytes, full.over_bytes
    for count in range(len(parts)):
        if low >= high:
            break
        straight = low - 1 + ceil(above / (above - below) * (high - low + 1))
        middle = max(low, min(straight, high - 1)) if count < _STRAIGHT else (low + high) // 2
        one = replayed(parts[middle])
        over = inf if one is None else tried(one).over_bytes
        if over <= 0.0:
            high, best, below = middle, one, over
        else:
            low, above = middle + 1, over if over < inf else above
    return best


def with_parts(
    known: Collection[Strategy],
    tried: Callable[[Strategy], Tried],
    refined: Callable[[Strategy, Strategy], Strategy | None],
    fastest_s: float = inf,
) -> Iterator[Strategy]:
    """Yields the strategies with part of the blocks recomputed that are faster than all that are
    known to fit, and than `fastest_s`. `refined` returns the part that is enough between a strategy
    that recomputes nothing and the same that recomputes all."""
    full_of = {tried(one).parallelism: one for one in known}
    fastest_s = min([fastest_s, *(one.time_s for one in map(tried, known) if one.fits)])
    for none in sorted(known, key=lambda one: tried(one).time_s):
        own = tried(none)
        full = full_of.get(replace(own.parallelism, recompute="full"))
        if own.parallelism.recompute != "none" or own.fits or full is None:
            continue
        if own.time_s >= fastest_s:
            break
        part = refined(none, full) if tried(full).fits else None
        if part is not None:
            fastest_s = min(fastest_s, tried(part).time_s)
            yield part
