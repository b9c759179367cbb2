"""Recomputation of some blocks, where all of them would be more than memory takes.

A strategy that does not fit without recomputation and fits with that of every block needs it of
some blocks alone: of the fewest with which it still fits. Fewer recomputed blocks keep more and
take less time, so that number is bisected, one replay at a time, and only where the strategy
without any recomputation is faster than the fastest that fits. Which blocks are recomputed is the
trainer's form, `Layers`: a mask over the choices of full recomputation (`peers/practices.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from math import inf
from typing import Literal, NamedTuple, TypeVar

from msgspec.structs import replace

from shardwise.documents.parallelism import Parallelism

Layers = Literal["all", "first", "every"]
"""Which blocks a trainer recomputes if not all: none but all, the first ones, every n-th."""

Strategy = TypeVar("Strategy")
"""What was replayed: a strategy of a problem, or a pipeline."""


class Tried(NamedTuple):
    """A strategy as it was replayed."""

    parallelism: Parallelism
    time_s: float
    fits: bool


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
    replayed: Callable[[Parallelism], Strategy | None],
    tried: Callable[[Strategy], Tried],
) -> Strategy | None:
    """Returns the first of the parts that fits, by bisection; None where none is found."""
    low, high, best = 0, len(parts), None
    while low < high:
        middle = (low + high) // 2
        one = replayed(parts[middle])
        if one is not None and tried(one).fits:
            high, best = middle, one
        else:
            low = middle + 1
    return best


def with_parts(
    known: Collection[Strategy],
    tried: Callable[[Strategy], Tried],
    refined: Callable[[Strategy], Strategy | None],
    fastest_s: float = inf,
) -> Iterator[Strategy]:
    """Yields the strategies with part of the blocks recomputed that are faster than all that are
    known to fit, and than `fastest_s`. `refined` returns the part of a strategy that recomputes
    all which is enough."""
    of = {tried(one).parallelism: one for one in known}
    fastest_s = min([fastest_s, *(one.time_s for one in map(tried, known) if one.fits)])
    for none in sorted(map(tried, known), key=lambda one: one.time_s):
        full = of.get(replace(none.parallelism, recompute="full"))
        if none.parallelism.recompute != "none" or none.fits or full is None:
            continue
        if none.time_s >= fastest_s:
            break
        part = refined(full) if tried(full).fits else None
        if part is not None:
            fastest_s = min(fastest_s, tried(part).time_s)
            yield part
