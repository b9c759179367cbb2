"""The six collectives as calls on buffers of a size (sizes as in `hardware/collectives.py`).

On CPUs the calls rotate through several sets of buffers, together larger than a cache: in a
training step other tensors pass through the cache before a buffer is touched again.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from math import ceil
from typing import Any

from shardwise.hardware.bandwidth import UnknownCollective
from shardwise.measure import scatter
from shardwise.measure.rank import Rank

ITEM_BYTES = 4
"""float32: what gradients and most activations of a gloo cluster are exchanged in."""

BUFFERS = 3
"""Multiples of the size that a call may hold: input, output, and the library's own copies."""

CACHE_BYTES = 2**26
"""The least that all sets of buffers on a CPU take, unless MOST_SETS or memory is too small."""
MOST_SETS = 32


def real_size(operation: str, size_bytes: int, ranks: int) -> int:
    """Returns the nearest smaller size that divides evenly if the operation divides it."""
    if operation in ("all_gather", "reduce_scatter", "all_to_all"):
        return max(size_bytes // (ITEM_BYTES * ranks), 1) * ITEM_BYTES * ranks
    return max(size_bytes // ITEM_BYTES, 1) * ITEM_BYTES


def prepare(
    rank: Rank,
    operation: str,
    size_bytes: int,
    group: Any,
    ranks: tuple[int, ...],
    memory_bytes: float,
) -> Callable[[], None]:
    """Returns a call of the operation in `group`, whose ranks are `ranks`, with buffers made.

    The buffers take at most `memory_bytes`, but at least those of one call.
    """
    may = int(memory_bytes // (BUFFERS * size_bytes))
    sets = 1 if rank.on_gpu else max(min(ceil(CACHE_BYTES / size_bytes), MOST_SETS, may), 1)
    calls = cycle([_prepared(rank, operation, size_bytes, group, ranks) for _ in range(sets)])

    def call() -> None:
        next(calls)()

    return call


def _prepared(
    rank: Rank, operation: str, size_bytes: int, group: Any, ranks: tuple[int, ...]
) -> Callable[[], None]:
    torch, distributed = rank.torch, rank.torch.distributed
    elements = size_bytes // ITEM_BYTES
    # Written zeros: `torch.zeros` may leave the pages to be allocated on first touch.
    whole = torch.empty(elements, device=rank.device).zero_()

    def all_reduce() -> None:
        distributed.all_reduce(whole, group=group)

    def broadcast() -> None:
        distributed.broadcast(whole, ranks[0], group=group)

    if operation == "all_reduce":
        return all_reduce
    if operation == "broadcast":
        return broadcast
    if operation in ("all_gather", "reduce_scatter"):
        part = torch.empty(elements // len(ranks), device=rank.device).zero_()

        def all_gather() -> None:
            distributed.all_gather_into_tensor(whole, part, group=group)

        def reduce_scatter() -> None:
            scatter.reduce_scatter(distributed, part, whole, group, spare=True)

        return all_gather if operation == "all_gather" else reduce_scatter
    other = torch.empty_like(whole).zero_()

    def all_to_all() -> None:
        distributed.all_to_all_single(other, whole, group=group)

    if operation == "all_to_all":
        return all_to_all
    if operation != "send_receive":
        raise UnknownCollective.named(operation)
    # Like halos and nccl-tests' sendrecv_perf: send to the next, receive from the one before.
    place = ranks.index(rank.world.rank)
    after, before = ranks[(place + 1) % len(ranks)], ranks[place - 1]

    def send_receive() -> None:
        pending = distributed.batch_isend_irecv(
            [
                distributed.P2POp(distributed.isend, whole, after, group),
                distributed.P2POp(distributed.irecv, other, before, group),
            ]
        )
        for one in pending:
            one.wait()

    return send_receive
