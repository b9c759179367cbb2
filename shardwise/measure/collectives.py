"""Tables of collectives: each operation on each group shape of the job's mesh (TensorOpt §3.2).

All sibling groups of a shape run at once, as they do in training, because they contend. Of every
size 2^i: calls to warm up, then repeats behind a barrier of all ranks; a repeat's time is that of
its slowest rank, the table has the median over repeats and their 10th and 90th percentile.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log2
from time import perf_counter
from typing import Any

import numpy as np

from shardwise.hardware.hardware import CollectiveTable
from shardwise.measure.budget import WARM_UPS, effort, fits, share_s
from shardwise.measure.exchange import BUFFERS, prepare, real_size
from shardwise.measure.options import SMALLEST_BYTES, MeasureOptions
from shardwise.measure.rank import Rank
from shardwise.measure.shapes import Siblings, group_shapes

Tell = Callable[[str, float], None]
FEWEST_SIZES = 2


def measure_collectives(
    rank: Rank, options: MeasureOptions, memory_bytes: float, limit_s: float, tell: Tell
) -> tuple[list[CollectiveTable], list[str]]:
    """Every table, and what was left out; the same on all ranks.

    `memory_bytes` is what this rank's buffers may take, `limit_s` the time for all tables.
    """
    began = perf_counter()
    shapes = group_shapes(rank.world.size, rank.world.ranks_per_node)
    todo = [(operation, siblings) for siblings in shapes for operation in options.operations]
    groups = {siblings.label: _own_group(rank, siblings) for siblings in shapes}
    largest = min(memory_bytes / BUFFERS, options.max_bytes or float("inf"))
    tables, notes = [], []
    for number, (operation, siblings) in enumerate(todo):
        tell(f"{operation}, {siblings.label}", number / len(todo))
        left = -rank.worst([-(limit_s - (perf_counter() - began))])[0]
        table, cut = _table(
            rank,
            operation,
            siblings,
            groups[siblings.label],
            largest,
            share_s(left, len(todo) - number),
        )
        tables.append(table)
        if cut:
            notes.append(cut)
    return tables, notes


def _own_group(rank: Rank, siblings: Siblings) -> tuple[Any, tuple[int, ...]]:
    """The group that this rank is in; every rank has to make every group, in one order."""
    mine = None
    for ranks in siblings.groups:
        made = rank.torch.distributed.new_group(list(ranks), backend=rank.backend)
        if rank.world.rank in ranks:
            mine = (made, ranks)
    assert mine is not None, "the sibling groups of a shape hold every rank"
    return mine


def _table(
    rank: Rank,
    operation: str,
    siblings: Siblings,
    own: tuple[Any, tuple[int, ...]],
    largest_bytes: float,
    limit_s: float,
) -> tuple[CollectiveTable, str]:
    began = perf_counter()
    group, ranks = own
    sizes: list[float] = []
    times = []
    size, last_s, pause_s, cut = SMALLEST_BYTES, 0.0, 0.0, ""
    while size <= largest_bytes or len(sizes) < FEWEST_SIZES:
        left = -rank.worst([-(limit_s - (perf_counter() - began))])[0]
        if len(sizes) >= FEWEST_SIZES and not fits(left, last_s, pause_s):
            cut = f"{operation} on {siblings.label}: no time for sizes above {sizes[-1]:,.0f} bytes"
            break
        real = real_size(operation, size, len(ranks))
        call = prepare(rank, operation, real, group, ranks)
        last_s, pause_s = _warmed(rank, call)
        sizes_left = max(int(log2(largest_bytes / size)) + 1, 1)
        much = effort(share_s(left, sizes_left), last_s, pause_s)
        seconds = []
        for _ in range(much.repeats):
            rank.barrier()
            seconds.append(rank.time(call, much.calls))
        slowest = rank.worst(seconds)
        last_s = float(np.median(slowest))
        sizes.append(float(real))
        times.append(slowest)
        # Before the next buffers are made: both at once would be more than the memory allowed.
        del call
        size *= 2
    table = CollectiveTable(
        operation,
        siblings.shape.nodes,
        siblings.shape.ranks_per_node,
        siblings.shape.consecutive,
        tuple(sizes),
        tuple(float(np.median(t)) for t in times),
        tuple(float(np.percentile(t, 10)) for t in times),
        tuple(float(np.percentile(t, 90)) for t in times),
        tuple(len(t) for t in times),
        siblings.per_node,
    )
    return table, cut


def _warmed(rank: Rank, call: Callable[[], None]) -> tuple[float, float]:
    """(seconds of the slowest rank's last call, seconds that the ranks take to meet)."""
    took = met = 0.0
    for _ in range(WARM_UPS):
        began = perf_counter()
        rank.barrier()
        met = perf_counter() - began
        took = rank.time(call)
    call_s, pause_s = rank.worst([took, met])
    return float(call_s), float(pause_s)
