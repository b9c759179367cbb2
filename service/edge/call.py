"""A call as the edge takes it, wherever it comes from: who asks, for what, with what body.

HTTP makes calls of requests (service/edge/http.py), the page of what a browser sent
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


def _nobody_notes(principal: Principal) -> None:
    """Does nothing."""


class Caller(msgspec.Struct, frozen=True):
    """Who asks, as far as the call says it.

    `address` is what a caller without a key is counted by, `authorization` the header of that name
    (None: there is none), `tenant` the one that an access token is to be used in. `takes_basic`
    says that the key may be the password of Basic credentials. `admitted` is told who it is.
    """

    address: str
    authorization: str | None = None
    tenant: str | None = None
    host: str = ""
    origin: str | None = None
    changes: bool = False
    takes_basic: bool = False
    signed_in: SignedIn | None = None
    admitted: Callable[[Principal], None] = _nobody_notes


class Body(Protocol):
    """The body of a call, read when the edge has room for it."""

    @property
    def expected_bytes(self) -> int:
        """How much memory it may need at most."""

    async def read(self) -> bytes:
        """Returns the body, decompressed. Raises `Problem` beyond the limits."""


class NoBody:
    """The body of a call that has none."""

    expected_bytes = 0

    async def read(self) -> bytes:
        """Returns nothing."""
        return b""


@dataclass(frozen=True)
class Call:
    """One call. `gone` ends when whoever waits for the answer goes away."""

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
        """What the audit and an Idempotency-Key know the call by: path and query."""
        return self.path + (f"?{self.query_string.decode('latin-1')}" if self.query_string else "")
