"""Tables of collectives: each operation on each group shape of the job's mesh (TensorOpt §3.2).

All sibling groups of a shape run at once, as they do in training, because they contend. Each size
2^i gets warm-up calls, then repeats, before each of which all ranks meet. A repeat's time is that
of its slowest rank; the table has the median over repeats and their 10th and 90th percentile.

All tables are measured in several passes, so that a disturbance of some seconds affects part of
each table's repeats rather than all repeats of one. The first pass finds the sizes that fit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np

from shardwise.hardware.hardware import CollectiveTable
from shardwise.measure.budget import WARM_UPS, effort, fits, next_call_s, share_s
from shardwise.measure.exchange import BUFFERS, prepare, real_size
from shardwise.measure.groups import OwnGroup
from shardwise.measure.options import MeasureOptions
from shardwise.measure.rank import Rank
from shardwise.measure.shapes import Siblings

Tell = Callable[[str, float], None]
FEWEST_SIZES = 2
PASSES = 3


def measure_collectives(
    rank: Rank,
    options: MeasureOptions,
    groups: Sequence[OwnGroup],
    memory_bytes: float,
    limit_s: float,
    tell: Tell,
) -> tuple[list[CollectiveTable], list[str]]:
    """Returns every table, and what was left out; the same on all ranks.

    `memory_bytes` is what this rank's buffers may take, `limit_s` the time for all tables.
    """
    began = perf_counter()
    largest = min(memory_bytes / BUFFERS, options.max_bytes or float("inf"))
    visited = [
        Visited(operation, own.siblings, own.group, own.ranks, memory_bytes)
        for own in groups
        for operation in options.operations
    ]
    for number in range(PASSES * len(visited)):
        pass_number, place = divmod(number, len(visited))
        one = visited[place]
        tell(f"{one.operation}, {one.siblings.label}", number / (PASSES * len(visited)))
        share = share_s(rank.left_s(limit_s, began), PASSES * len(visited) - number)
        if pass_number == 0:
            _first_pass(rank, one, options, largest, share)
        else:
            _further_pass(rank, one, share)
    return [one.table() for one in visited], [one.cut for one in visited if one.cut]


@dataclass
class Visited:
    """One table being measured: by real size the repeats of the slowest rank, (repeats,) each.

    `group` is the one that this rank is in, None for a rank that is in none and only waits, `ranks`
    its members; buffers may take `memory_bytes`;
    `cut` says where the table ended for lack of time.
    """

    operation: str
    siblings: Siblings
    group: Any
    ranks: tuple[int, ...]
    memory_bytes: float
    repeats_s: dict[int, list[float]] = field(default_factory=dict)
    cut: str = ""

    def table(self) -> CollectiveTable:
        """Returns the table of what was timed so far."""
        shape, times = self.siblings.shape, list(self.repeats_s.values())

        def at(percent: float) -> tuple[float, ...]:
            return tuple(float(np.percentile(repeats, percent)) for repeats in times)

        return CollectiveTable(
            self.operation,
            shape.nodes,
            shape.ranks_per_node,
            shape.consecutive,
            tuple(float(size) for size in self.repeats_s),
            at(50),
            at(10),
            at(90),
            tuple(len(repeats) for repeats in times),
            self.siblings.per_node,
            ranks_by_level=shape.counts if len(shape.counts) > 2 else (),
            groups=self.siblings.kinds,
        )


def _first_pass(
    rank: Rank, one: Visited, options: MeasureOptions, largest: float, limit_s: float
) -> None:
    """Times sizes from the smallest up, as far as the largest and the time allow; each as few times
    as may be, which leaves time for larger ones."""
    began = perf_counter()
    step = options.step
    size, before_s, last_s, pause_s = float(options.min_bytes), 0.0, 0.0, 0.0
    while size <= largest or len(one.repeats_s) < FEWEST_SIZES:
        left = rank.left_s(limit_s, began)
        expected_s = next_call_s(last_s, before_s, step)
        if len(one.repeats_s) >= FEWEST_SIZES and not fits(left, expected_s, pause_s):
            reached = max(one.repeats_s)
            where = f"{one.operation} on {one.siblings.label}"
            one.cut = f"{where}: no time for sizes above {reached:,} bytes"
            break
        real = real_size(one.operation, round(size), one.siblings.shape.size)
        before_s = last_s
        last_s, pause_s = _repeat(rank, one, real, 0.0)
        size *= step


def _further_pass(rank: Rank, one: Visited, limit_s: float) -> None:
    """Times the same sizes again while there is time."""
    began = perf_counter()
    pause_s = 0.0
    for number, real in enumerate(list(one.repeats_s)):
        left = rank.left_s(limit_s, began)
        if not fits(left, float(np.median(one.repeats_s[real])), pause_s):
            break
        pause_s = _repeat(rank, one, real, share_s(left, len(one.repeats_s) - number))[1]


def _repeat(rank: Rank, one: Visited, real: int, share: float) -> tuple[float, float]:
    """Times a size for about `share` seconds; returns (seconds of a call, seconds to meet)."""
    call = _idle
    if one.group is not None:
        call = prepare(rank, one.operation, real, one.group, one.ranks, one.memory_bytes)
    warm_s, pause_s = _warmed(rank, one, call)
    much = effort(share - WARM_UPS * (warm_s + pause_s), warm_s, pause_s)
    seconds = []
    for _ in range(much.repeats):
        _meet(rank, one)
        seconds.append(rank.time(call, much.calls))
    slowest = rank.worst(seconds)
    one.repeats_s.setdefault(real, []).extend(slowest.tolist())
    return float(np.median(slowest)), pause_s


def _idle() -> None:
    """Does nothing, while groups that this rank is not in communicate."""


def _meet(rank: Rank, one: Visited) -> None:
    """Waits for all ranks. Groups over hosts do not meet by themselves: what one of them waits for
    would come behind what others already exchange, and siblings would no longer run at once."""
    if one.group is None or one.siblings.shape.nodes > 1:
        rank.barrier()
    else:
        rank.meet(one.group)


def _warmed(rank: Rank, one: Visited, call: Callable[[], None]) -> tuple[float, float]:
    """Returns (seconds of the slowest rank's last call, seconds that the ranks take to meet)."""
    took = met = 0.0
    for _ in range(WARM_UPS):
        began = perf_counter()
        _meet(rank, one)
        met = perf_counter() - began
        took = rank.time(call)
    call_s, pause_s = rank.worst([took, met])
    return float(call_s), float(pause_s)
