"""HTTP requests become calls, and results become HTTP responses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from service.base.addresses import address_of
from service.base.conditional import matches
from service.base.pools import expected_bytes, gone_of
from service.base.shares import lane_of_address
from service.edge import perform
from service.edge.body import read_body
from service.edge.call import Call, Caller
from service.edge.context import Handler, RequestContext, Result
from service.edge.state import State, state_of
from service.login.signed_in import TENANT_HEADER, carried
from service.store.keys import Principal

BASIC_PATHS = ("/v1/skypilot/policy",)
"""Where a key may also be the password of Basic: SkyPilot can configure only a URL, no header.

Nowhere else, since a browser that was once given such a URL would send it along unasked.
"""
IDEMPOTENCY_HEADER = "idempotency-key"
_TENANT = TENANT_HEADER.encode()
_CALLER_HEADERS = frozenset((b"authorization", b"host", b"origin", _TENANT))


def caller_of(request: Request) -> Caller:
    """Returns the sender of a request, as far as the request says."""

    def known(principal: Principal) -> None:
        request.state.principal = principal

    # Every request comes here: one pass over its headers; the first of a name counts.
    headers = {
        name: value for name, value in reversed(request.scope["headers"]) if name in _CALLER_HEADERS
    }
    return Caller(
        address=address_of(request),
        authorization=_text(headers.get(b"authorization")),
        tenant=_text(headers.get(_TENANT)),
        host=headers.get(b"host", b"").decode("latin-1"),
        origin=_text(headers.get(b"origin")),
        changes=request.method not in ("GET", "HEAD"),
        takes_basic=request.scope["path"] in BASIC_PATHS,
        signed_in=carried(request),
        known=known,
    )


def lane_of(request: Request) -> str:
    """Returns the lane that a request counts against: its caller's, or its address before that is
    known."""
    principal: Principal | None = getattr(request.state, "principal", None)
    return lane_of_address(address_of(request)) if principal is None else principal.lane


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("latin-1")


def call_of(request: Request) -> Call:
    """Returns the call that a request makes; its body is not read yet."""
    key = request.headers.get(IDEMPOTENCY_HEADER) if request.method == "POST" else None
    return Call(
        caller=caller_of(request),
        path=request.scope["path"],
        gone=gone_of(request),
        query=request.query_params,
        query_string=request.scope["query_string"],
        body=_RequestBody(request),
        content_type=request.headers.get("content-type", "").partition(";")[0].strip().lower(),
        idempotency_key=key,
    )


class _RequestBody:
    """The body of a request, as its client sends it."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._state = state_of(request)

    @property
    def expected_bytes(self) -> int:
        """The most memory that it may need, in bytes, by the request's headers."""
        settings = self._state.settings
        return expected_bytes(self._request, settings.max_body_bytes, settings.max_gzip_ratio)

    async def read(self) -> bytes:
        """Returns the body, decompressed. Raises what `read_body` raises."""
        return await read_body(self._request, self._state, lane_of(self._request))


async def read(
    request: Request,
    handler: Handler,
    scope: str = "read",
    before: Callable[[State], None] | None = None,
    finish: Callable[[Result], None] | None = None,
) -> Response:
    """As `perform.read`; returns 304 if the client already has the answer."""

    def finished(result: Result) -> None:
        if finish is not None:
            finish(result)
        encode(result)

    result = await perform.read(
        state_of(request), call_of(request), handler, scope, before, finish=finished
    )
    if matches(request.headers.get("if-none-match"), result.headers.get("ETag")):
        return Response(status_code=304, headers=result.headers)
    return response_of(result)


async def write(
    request: Request,
    handler: Handler,
    action: str,
    scope: str = "submit",
    parse: Callable[[RequestContext], Any] | None = None,
    *,
    secret: bool = False,
    upload: bool = False,
) -> Response:
    """As `perform.write`."""
    return response_of(
        await perform.write(
            state_of(request),
            call_of(request),
            handler,
            action,
            scope,
            parse,
            secret=secret,
            upload=upload,
        )
    )


async def write_unless_cached(
    request: Request,
    known: Handler,
    handler: Handler,
    action: str,
    scope: str = "submit",
    parse: Callable[[RequestContext], Any] | None = None,
) -> Response:
    """As `perform.write_unless_cached`."""
    return response_of(
        await perform.write_unless_cached(
            state_of(request), call_of(request), known, handler, action, scope, parse
        )
    )


async def write_and_wait(
    request: Request,
    known: Handler,
    handler: Handler,
    late: Handler,
    within_s: float,
    action: str,
    parse: Callable[[RequestContext], Any],
    scope: str = "submit",
) -> Response:
    """As `perform.write_and_wait`."""
    return response_of(
        await perform.write_and_wait(
            state_of(request),
            call_of(request),
            known,
            handler,
            late,
            within_s,
            action,
            parse,
            scope,
        )
    )


def response_of(result: Result) -> Response:
    """Returns a result as a Starlette response."""
    content = result.sent()
    # An empty body is valid JSON lines too.
    media_type = None if result.status == 204 else result.media_type
    return Response(content, result.status, result.headers, media_type)


def encode(result: Result) -> None:
    """Encodes a result; to be called off the event loop, since it may be large."""
    result.content = result.sent()
