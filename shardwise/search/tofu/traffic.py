"""Bytes that one recursive step moves between worker groups (Tofu §4.2, §5.2).

A step splits each of n worker groups in k. A tensor lies in shares along one dimension f, its
*storage*; a use takes or leaves shares along d. With r bytes that the use touches in one worker
group so far, of which the worker group itself stores o, and h bytes of halo per cut, the step moves
in each worker group, all k parts together:

    d = f                    (k-1) h
    d ≠ f                    (k-1)/k (o + (k-1) h)
    fetch the whole          (k-1) r
    store partial sums       (k-1) r          each part sends what others store
    store a replica          0

What came from other worker groups in earlier steps, r - o, is an extra input of its own (Tofu,
Figure 6): it lies as its reader wants it, so only a reader of the whole pays for it. A tensor
that cannot be split further is stored whole by all k: reading its own part is free, storing
shares costs (k-1) r and partial sums 2 (k-1) r.

Forward, a group fetches what it reads and stores what it makes; backward it fetches once more
what its gradients need, fetches the gradients of what it made and stores those of what it read.
Operators of one group fetch a tensor once between them and add their gradients up before they
store them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from shardwise.search.tofu.uses import Parts, Use
from shardwise.sharding.coarsen import Member
from shardwise.sharding.layout import PARTIAL, REPLICATE

WHOLE = REPLICATE
"""A storage: the tensor cannot be split, every worker group holds all of it."""

STATISTIC_BYTES = 4


@dataclass(frozen=True)
class Split:
    """A basic strategy for one group: `variable` among k, with the shares before it."""

    variable: int
    k: int
    parts: Parts


def tensor_bytes(split: Split, uses: Sequence[Use], storage: int, own: float) -> float:
    """Returns what one group's uses of a tensor move, when it lies along dimension `storage`.

    `own` is the fraction of what the group touches that its own worker group stores.
    """
    reads = _distinct(split, [u for u in uses if not u.made], Use.fetched)
    refetches = _distinct(split, [u for u in uses if u.refetched], Use.fetched)
    makes = _distinct(split, [u for u in uses if u.made], Use.stored)
    return (
        sum(_fetch(split, *flow, storage, own) for flow in reads)
        + sum(_fetch(split, *flow, storage, own) for flow in refetches)
        + sum(_store(split, *flow, storage, own) for flow in makes)
    )


def gradient_bytes(split: Split, uses: Sequence[Use], storage: int, own: float) -> float:
    """Returns what `tensor_bytes` does, for the tensor's gradient."""
    passing = [u for u in uses if u.gradient]
    wants = _distinct(split, [u for u in passing if u.made], Use.fetched)
    gives = _distinct(split, [u for u in passing if not u.made], Use.stored)
    return sum(_fetch(split, *flow, storage, own) for flow in wants) + sum(
        _store(split, *flow, storage, own) for flow in gives
    )


def statistics_bytes(split: Split, members: Iterable[Member]) -> float:
    """Returns what statistics (mean, maximum) over a split dimension move.

    They are all-reduced forward and backward.
    """
    total = 0.0
    for member in members:
        for statistic in member.semantics.statistics:
            if not any(member.variables[v] == split.variable for v in statistic.reduced):
                continue
            elements = float(statistic.values)
            for v in statistic.indexed:
                extent = member.semantics.variables[v].extent
                elements *= -(-extent // int(split.parts[member.variables[v]]))
            total += 2 * 2 * (split.k - 1) * elements * STATISTIC_BYTES
    return total


def own_after(split: Split, uses: Sequence[Use], storage: int, own: float) -> float:
    """Returns the fraction of what the group touches that a worker group stores afterwards."""
    if storage == WHOLE or uses[0].fetched(split.variable) == storage:
        return own
    return own / split.k


Flow = tuple[int, float, float]
"""State (dim, REPLICATE or PARTIAL), region and halo in bytes."""


def _distinct(split: Split, uses: Sequence[Use], state_of: Callable[[Use, int], int]) -> list[Flow]:
    """Returns one flow for each state; the largest region counts, and the whole covers every share.

    Shares along different dimensions are counted each (their corners overlap).
    """
    flows: dict[int, tuple[float, float]] = {}
    for use in uses:
        state = state_of(use, split.variable)
        region, halo = flows.get(state, (0.0, 0.0))
        flows[state] = (
            max(region, use.region_bytes(split.parts)),
            max(halo, use.halo_bytes(split.variable, split.parts)),
        )
    covering = REPLICATE if state_of is Use.fetched else PARTIAL
    if covering in flows:
        flows = {covering: flows[covering]}
    return [(state, region, halo) for state, (region, halo) in flows.items()]


def _fetch(split: Split, state: int, region: float, halo: float, storage: int, own: float) -> float:
    others = split.k - 1
    if state == REPLICATE:
        return others * region * ((1 - own) if storage == WHOLE else 1)
    if storage == WHOLE:
        return 0.0
    return _along(split.k, state, region, halo, storage, own)


def _store(split: Split, state: int, region: float, halo: float, storage: int, own: float) -> float:
    others = split.k - 1
    if state == REPLICATE:
        return 0.0
    if state == PARTIAL:
        return others * region * (2 if storage == WHOLE else 1)
    if storage == WHOLE:
        return others * region
    return _along(split.k, state, region, halo, storage, own)


def _along(k: int, state: int, region: float, halo: float, storage: int, own: float) -> float:
    if state == storage:
        return (k - 1) * halo
    return (k - 1) / k * (own * region + (k - 1) * halo)
