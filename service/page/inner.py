"""The page asks as a client does: its requests go through the edge of the HTTP calls.

Admission, limits, audit, quotas and tenants are the edge's; the page translates forms into
bodies, and documents into HTML. A cookie's key becomes the `Authorization` header here and nowhere
else; who is signed in by a session goes along in the request's scope.
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
from service.login.signed_in import CARRIED, carried
from service.page.session import presented_key
from service.state import State
from service.store.keys import Principal

_NOT_PASSED_ON = {
    b"content-type",
    b"content-length",
    b"content-encoding",
    b"if-none-match",
    b"cookie",
}


def listed(request: Request, limit: str) -> dict[str, str]:
    """The query of a list's page: what a form was sent to shows the first one."""
    cursor = request.query_params.get("cursor") if request.method != "POST" else None
    return {"limit": limit, **({"cursor": cursor} if cursor else {})}


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
    person = carried(request) if key is None else None
    key = key or (presented_key(request) if person is None else None)
    if key is not None:
        headers = [(name, value) for name, value in headers if name != b"authorization"]
        headers.append((b"authorization", f"Bearer {key}".encode()))
    if content_type:
        headers.append((b"content-type", content_type.encode()))
    scope = {
        **request.scope,
        "headers": headers,
        "query_string": urlencode(query or {}).encode(),
        CARRIED: person,
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
    operator: bool = False
    tenant: str = ""
    open: bool = False


async def read(
    request: Request,
    handler: Handler,
    query: dict[str, str] | None = None,
    before: Callable[[State], None] | None = None,
    scope: str = "read",
) -> Any:
    """The document that a reading call gives; `scope` and `before` as in `look`."""
    answer = await look(inner_request(request, query=query), handler, scope, before)
    return msgspec.json.decode(answer.body)


async def read_and_rights(
    request: Request,
    handler: Handler,
    query: dict[str, str] | None = None,
    before: Callable[[State], None] | None = None,
    scope: str = "read",
) -> tuple[Any, Rights]:
    """The document that a reading call gives, and what its asker may do."""
    seen: list[Rights] = []

    def handle(call: Call) -> Answer:
        seen.append(rights_of(call.principal))
        return handler(call)

    return await read(request, handle, query, before, scope), seen[0]


def rights_of(who: Principal) -> Rights:
    """What a principal may do."""
    return Rights(
        who.may("submit"), who.may("admin"), who.may("operator"), who.tenant, who.kind == "open"
    )


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
    upload: bool = False,
) -> Response:
    """The answer of a call that stores, starts, cancels or deletes; the rest as in `change`."""
    inner = inner_request(request, query=query, body=body, content_type=content_type)
    return await change(inner, handler, action, scope, parse=parse, secret=secret, upload=upload)
