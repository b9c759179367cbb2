"""The page asks as a client does: its requests go through the edge of the HTTP calls.

Admission, limits, audit, quotas and tenants are the edge's; the page translates forms into
bodies, and documents into HTML. A cookie's key becomes the `Authorization` header here and nowhere
else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import msgspec
from fastapi import Request, Response
from starlette.types import Message

from service.edge import Answer, Call, Handler, change, look
from service.page.session import presented_key
from service.state import State

_NOT_PASSED_ON = {
    b"content-type",
    b"content-length",
    b"content-encoding",
    b"if-none-match",
    b"cookie",
}


def inner_request(
    request: Request,
    *,
    query: dict[str, str] | None = None,
    body: bytes = b"",
    content_type: str = "",
    key: str | None = None,
) -> Request:
    """The request as an HTTP client would send it, with the session's key (or this one)."""
    headers = [(name, value) for name, value in request.headers.raw if name not in _NOT_PASSED_ON]
    key = key or presented_key(request)
    if key is not None:
        headers = [(name, value) for name, value in headers if name != b"authorization"]
        headers.append((b"authorization", f"Bearer {key}".encode()))
    if content_type:
        headers.append((b"content-type", content_type.encode()))
    scope = {
        **request.scope,
        "headers": headers,
        "query_string": urlencode(query or {}).encode(),
    }
    sent = False

    async def receive() -> Message:
        nonlocal sent
        if sent:
            return await request.receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return Request(scope, receive)


@dataclass(frozen=True)
class Rights:
    """What the asker may do beyond reading: a page leaves out what would be refused."""

    submit: bool
    admin: bool


async def read(
    request: Request,
    handler: Handler,
    query: dict[str, str] | None = None,
    before: Callable[[State], None] | None = None,
) -> Any:
    """The document that a reading call gives; `before` as in `look`."""
    answer = await look(inner_request(request, query=query), handler, before=before)
    return msgspec.json.decode(answer.body)


async def read_and_rights(
    request: Request,
    handler: Handler,
    query: dict[str, str] | None = None,
    before: Callable[[State], None] | None = None,
) -> tuple[Any, Rights]:
    """The document that a reading call gives, and what its asker may do."""
    seen: list[Rights] = []

    def handle(call: Call) -> Answer:
        seen.append(Rights(call.principal.may("submit"), call.principal.may("admin")))
        return handler(call)

    return await read(request, handle, query, before), seen[0]


async def send(
    request: Request,
    handler: Handler,
    action: str,
    scope: str = "submit",
    *,
    body: bytes = b"",
    content_type: str = "",
    query: dict[str, str] | None = None,
    parse: Callable[[Call], Any] | None = None,
    secret: bool = False,
) -> Response:
    """The answer of a call that stores, starts, cancels or deletes; `secret` as in `change`."""
    inner = inner_request(request, query=query, body=body, content_type=content_type)
    return await change(inner, handler, action, scope, parse=parse, secret=secret)
