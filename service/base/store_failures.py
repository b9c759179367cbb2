"""Errors of a store that cannot do its work; the cause is outside this program."""

from __future__ import annotations

from shardwise.errors import ShardwiseError


class StoreUnavailable(ShardwiseError):
    """The database cannot be used just now; the same call may work later."""

    exit_code = 3


class StoreFull(StoreUnavailable):
    """The database's disk is full; nothing that the call sent was stored."""
