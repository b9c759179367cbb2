"""The client of a Shardwise service (extra `client`): `Client` blocks, `AsyncClient` awaits.

httpx is imported when one of the two is first used, not before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardwise.client.errors import (
    Denied,
    JobCancelled,
    JobFailed,
    JobRefused,
    Missing,
    Refused,
    ServiceDefect,
    ServiceError,
    TooMany,
    Unreachable,
)
from shardwise.client.job import Job
from shardwise.client.webhooks import verify_webhook
from shardwise.errors import BadInput

if TYPE_CHECKING:
    from shardwise.client.awaiting.client import AsyncClient
    from shardwise.client.blocking.client import Client

_MODULES = {"Client": "blocking.client", "AsyncClient": "awaiting.client"}

__all__ = [
    "AsyncClient",
    "Client",
    "Denied",
    "Job",
    "JobCancelled",
    "JobFailed",
    "JobRefused",
    "Missing",
    "Refused",
    "ServiceDefect",
    "ServiceError",
    "TooMany",
    "Unreachable",
    "verify_webhook",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name != "httpx":
            raise
        raise BadInput(
            "httpx is not installed", field=name, expected="pip install 'shardwise[client]'"
        ) from None
