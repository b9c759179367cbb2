"""The six collectives as calls on buffers of a size (sizes as in `hardware/collectives.py`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shardwise.hardware.bandwidth import UnknownCollective
from shardwise.measure.rank import Rank

ITEM_BYTES = 4
"""float32: what gradients and most activations of a gloo cluster are exchanged in."""

BUFFERS = 3
"""Times the size that a call may hold: input, output, and what the library copies meanwhile."""


def real_size(operation: str, size_bytes: int, ranks: int) -> int:
    """The size nearest below that divides evenly where the operation divides it."""
    if operation in ("all_gather", "reduce_scatter", "all_to_all"):
        return max(size_bytes // (ITEM_BYTES * ranks), 1) * ITEM_BYTES * ranks
    return max(size_bytes // ITEM_BYTES, 1) * ITEM_BYTES


def prepare(
    rank: Rank, operation: str, size_bytes: int, group: Any, ranks: tuple[int, ...]
) -> Callable[[], None]:
    """A call of the operation in `group` (its ranks in the world: `ranks`), buffers made."""
    torch, distributed = rank.torch, rank.torch.distributed
    elements = size_bytes // ITEM_BYTES
    whole = torch.zeros(elements, device=rank.device)

    def all_reduce() -> None:
        distributed.all_reduce(whole, group=group)

    def broadcast() -> None:
        distributed.broadcast(whole, ranks[0], group=group)

    if operation == "all_reduce":
        return all_reduce
    if operation == "broadcast":
        return broadcast
    if operation in ("all_gather", "reduce_scatter"):
        part = torch.zeros(elements // len(ranks), device=rank.device)

        def all_gather() -> None:
            distributed.all_gather_into_tensor(whole, part, group=group)

        def reduce_scatter() -> None:
            distributed.reduce_scatter_tensor(part, whole, group=group)

        return all_gather if operation == "all_gather" else reduce_scatter
    other = torch.zeros_like(whole)

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
