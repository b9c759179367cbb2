"""A call as the edge sees it, wherever it comes from: who asks, for what, with what body.

HTTP turns requests into calls (service/edge/http.py), the page what a browser sent
(service/page/inner.py). Nothing here knows a transport.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
from starlette.datastructures import QueryParams

from service.base.fair_slots import Gone
from service.login.signed_in import SignedIn
from service.store.keys import Principal


def _ignore(principal: Principal) -> None:
    """Does nothing."""


class Caller(msgspec.Struct, frozen=True):
    """Who makes a call, as far as the call says so.

    `address` is what a caller without a key is counted by, `authorization` the header of that name
    (None if absent), `tenant` the one that an access token is to be used in. `takes_basic` says
    that the key may be the password of Basic credentials. `known` is called with the principal,
    whether or not it may make the call.
    """

    address: str
    authorization: str | None = None
    tenant: str | None = None
    host: str = ""
    origin: str | None = None
    changes: bool = False
    takes_basic: bool = False
    signed_in: SignedIn | None = None
    known: Callable[[Principal], None] = _ignore


class Body(Protocol):
    """The body of a call, read when the edge has room for it."""

    @property
    def expected_bytes(self) -> int:
        """The most memory that it may need, in bytes."""

    async def read(self) -> bytes:
        """Returns the body, decompressed. Raises `Problem` beyond the limits."""


class NoBody:
    """The body of a call that has none."""

    expected_bytes = 0

    async def read(self) -> bytes:
        """Returns no bytes."""
        return b""


@dataclass(frozen=True)
class Call:
    """One call. `gone` ends when the client that waits for the answer disconnects."""

    caller: Caller
    path: str
    gone: Gone
    query: QueryParams = field(default_factory=QueryParams)
    query_string: bytes = b""
    body: Body = field(default_factory=NoBody)
    content_type: str = ""
    idempotency_key: str | None = None

    @property
    def target(self) -> str:
        """Path and query, by which the audit and an Idempotency-Key identify the call."""
        return self.path + (f"?{self.query_string.decode('latin-1')}" if self.query_string else "")
