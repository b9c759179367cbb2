"""The page's calls of the edge: built from what a browser sent, answered with documents.

Admission, limits, audit, quotas and tenants are the edge's; the page translates forms into bodies,
and documents into HTML. A cookie's key becomes a credential here and nowhere else; the user of a
session is passed along with the call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import msgspec
from fastapi import Request, Response
from starlette.datastructures import QueryParams

from service.base.pools import gone_of
from service.edge import perform
from service.edge.body import decoded
from service.edge.call import Call, Caller
from service.edge.context import Handler, RequestContext, Result
from service.edge.http import caller_of, encode, lane_of, response_of
from service.edge.state import State, state_of
from service.page.session import presented_key
from service.store.keys import Principal


def listed(request: Request, limit: str) -> dict[str, str]:
    """Returns the query of a list's page; the answer to a form shows the first page."""
    cursor = request.query_params.get("cursor") if request.method != "POST" else None
    return {"limit": limit, **({"cursor": cursor} if cursor else {})}


def page_caller(request: Request, key: str | None = None) -> Caller:
    """Returns the page's caller: by this key, by the session, or by the cookie's key."""
    caller = caller_of(request)
    if key is None and caller.signed_in is None:
        key = presented_key(request)
    elif key is not None:
        caller = msgspec.structs.replace(caller, signed_in=None)
    if key is None:
        return caller
    return msgspec.structs.replace(caller, authorization=f"Bearer {key}")


def page_call(
    request: Request,
    *,
    query: dict[str, str] | None = None,
    body: bytes = b"",
    content_type: str = "",
) -> Call:
    """Returns a call of the page's caller with this query and this body."""
    text = urlencode(query or {})
    return Call(
        caller=page_caller(request),
        path=request.scope["path"],
        gone=gone_of(request),
        query=QueryParams(text),
        query_string=text.encode(),
        body=_FormBody(body, request),
        content_type=content_type,
    )


class _FormBody:
    """A body that came in a form; its memory is already accounted for."""

    expected_bytes = 0

    def __init__(self, content: bytes, request: Request) -> None:
        self._content = content
        self._request = request

    async def read(self) -> bytes:
        """Returns the content; a gzip file (graph.json.gz) is decompressed."""
        state, lane = state_of(self._request), lane_of(self._request)
        return await decoded(self._content, "identity", state.settings.max_body_bytes, state, lane)


@dataclass(frozen=True)
class Rights:
    """The caller's rights beyond reading; pages leave out actions that would be refused."""

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
    """Returns the document of a reading call; arguments as in `perform.read`."""
    result = await perform.read(
        state_of(request), page_call(request, query=query), handler, scope, before, _as_document
    )
    return result.document


async def as_json(
    request: Request, handler: Handler, query: dict[str, str] | None = None
) -> Response:
    """Returns the answer of a reading call as JSON, for scripts and for downloads."""
    return response_of(
        await perform.read(
            state_of(request), page_call(request, query=query), handler, finish=encode
        )
    )


def _as_document(result: Result) -> None:
    # A stored answer is JSON text already.
    result.document = msgspec.json.decode(result.sent())


async def read_and_rights(
    request: Request,
    handler: Handler,
    query: dict[str, str] | None = None,
    before: Callable[[State], None] | None = None,
    scope: str = "read",
) -> tuple[Any, Rights]:
    """Returns the document of a reading call, and what its caller may do."""
    seen: list[Rights] = []

    def handle(context: RequestContext) -> Result:
        seen.append(rights_of(context.principal))
        return handler(context)

    return await read(request, handle, query, before, scope), seen[0]


def rights_of(who: Principal) -> Rights:
    """Returns a principal's rights."""
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
    parse: Callable[[RequestContext], Any] | None = None,
    secret: bool = False,
    upload: bool = False,
) -> Result:
    """Returns the result of a call that stores, starts, cancels or deletes something.

    Arguments are those of `perform.write`; the result's document consists of JSON values.
    """
    call = page_call(request, query=query, body=body, content_type=content_type)
    result = await perform.write(
        state_of(request), call, handler, action, scope, parse, secret=secret, upload=upload
    )
    if result.sent():
        _as_document(result)
    return result
