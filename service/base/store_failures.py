"""What a store raises when it cannot do its work; the cause is outside of this program."""

from __future__ import annotations

from shardwise.errors import ShardwiseError


class StoreUnavailable(ShardwiseError):
    """The database cannot be used just now; the same call may work later."""

    exit_code = 3


class StoreFull(StoreUnavailable):
    """The database's disk is full; nothing of the call was stored."""
