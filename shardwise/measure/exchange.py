"""The six collectives as calls on buffers of a size (sizes as in `hardware/collectives.py`).

On CPUs the calls go round several sets of buffers, together larger than a cache: in a training
step other tensors have passed through it since a buffer was last touched.
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
"""Times the size that a call may hold: input, output, and what the library copies meanwhile."""

CACHE_BYTES = 2**26
"""What the sets of buffers on a CPU take together, at least, if there may be so many."""
MOST_SETS = 32


def real_size(operation: str, size_bytes: int, ranks: int) -> int:
    """The size nearest below that divides evenly where the operation divides it."""
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
    """A call of the operation in `group` (its ranks in the world: `ranks`), buffers made.

    The buffers take no more than `memory_bytes`, but at least those of one call.
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
    # Zeros that are written: `torch.zeros` may leave the pages to whoever touches them first.
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
    # As halos go and as nccl-tests' sendrecv_perf does: to the next, from the one before.
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
