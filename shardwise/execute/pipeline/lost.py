"""Names the rank whose end made a step fail.

Where a rank ends, only those see it that exchange something with it just then; they end, which
others see. So that all name the first, whoever finds it writes it where the ranks have met (the
store of torch.distributed), and whoever fails looks there before it looks for itself. A rank that
has ended is found by asking each for a message, which fails at once where the connection is closed.
Where the store itself ended with a rank, all closed ones are named.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from shardwise.errors import ShardwiseError

KEY = "shardwise/lost"
LOOKS_S = 2.0
"""How long a rank looks for the one that ended: its connections may close a moment later."""

_TAG = 2**30
"""Of messages that never come."""


class RankLost(ShardwiseError):
    """Another rank ended, or did not answer in time."""


@contextlib.contextmanager
def naming_the_lost(stages_of: Callable[[int], str]) -> Iterator[None]:
    """Turns the errors of collectives and transfers inside into `RankLost` that names the rank that
    ended, with its stages as `stages_of` calls them; other errors stay as they are."""
    try:
        yield
    except RuntimeError as error:
        ranks = _found(error)
        if not ranks:
            raise
        named = " and ".join(f"rank {rank} ({stages_of(rank)})" for rank in ranks)
        raise RankLost(f"{named} ended: {_first_line(error)}") from error


def timed_out(error: RuntimeError) -> bool:
    """Returns whether a transfer failed because the other rank did not answer in time."""
    return "timed out" in str(error).lower()


def _found(error: RuntimeError) -> Sequence[int]:
    """Returns the rank that ended first; several where that cannot be told, none if none did."""
    if timed_out(error) or isinstance(error, torch.OutOfMemoryError):
        return ()
    store = _store()
    until = time.monotonic() + LOOKS_S
    while True:
        closed = list(_closed())
        try:
            noted = _noted(store, closed)
        except (RuntimeError, ValueError):
            # The rank that had the store is among those that ended.
            noted = None
        if noted is not None:
            return (noted,)
        if closed or time.monotonic() > until or not _is_of_transport(error):
            return closed
        time.sleep(0.05)


def _is_of_transport(error: RuntimeError) -> bool:
    return isinstance(error, dist.DistError) or "onnection" in str(error) or "gloo" in str(error)


def _closed() -> Iterator[int]:
    """Yields the ranks whose connection is closed."""
    if dist.get_backend() != "gloo":
        return
    for rank in range(dist.get_world_size()):
        if rank != dist.get_rank():
            try:
                dist.irecv(torch.empty(1), rank, tag=_TAG)
            except RuntimeError:
                yield rank


def _store() -> Any:
    """Returns the store where the ranks met, None where torch does not say."""
    get: Callable[[], Any] = getattr(dist.distributed_c10d, "_get_default_store", lambda: None)
    return get()


def _noted(store: Any, closed: Sequence[int]) -> int | None:
    """Returns the rank that was noted first, after noting the first of `closed`; None without."""
    if store is None:
        return None
    if store.check([KEY]):
        return int(store.get(KEY))
    return int(store.compare_set(KEY, "", str(closed[0]))) if closed else None


def _first_line(error: RuntimeError) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
