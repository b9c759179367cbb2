"""`/keys`: keys listed, created, rotated and revoked; those of any tenant for operators."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
from fastapi import Request, Response

from service.base.problems import Problem, problem_of
from service.handlers import keys as handlers
from service.page.forms import read_form, texts
from service.page.inner import listed, read_and_rights, send
from service.page.render import redirect, respond
from service.page.views.key_forms import key_body, rotate_body, scopes_offered
from shardwise.errors import ShardwiseError

PAGE = "50"
JSON = "application/json"


async def show_all(request: Request) -> Response:
    """Returns the keys, newest first, and the form for a new one."""
    return await _list(request)


async def make(request: Request) -> Response:
    """Returns a new key, shown on this page and never again."""
    values = texts(await read_form(request, "admin"))
    try:
        key = await make_key(request, None, values)
    except ShardwiseError as error:
        problem = problem_of(error)
        if problem.status not in (403, 422, 429):
            raise
        return await _list(request, problem, values)
    return await show_key(request, key, "/keys")


async def make_key(request: Request, tenant: str | None, values: dict[str, str]) -> Any:
    """Creates a key. Returns its document."""
    result = await send(
        request,
        partial(handlers.post_key, tenant=tenant),
        "keys.create",
        "admin" if tenant is None else "operator",
        body=msgspec.json.encode(key_body(values)),
        content_type=JSON,
        parse=handlers.parse_key,
        secret=True,
    )
    document: dict[str, Any] = result.document
    return document


async def rotate(request: Request, key_id: str, tenant: str | None = None) -> Response:
    """Returns a key that replaces another, shown on this page and never again."""
    scope = "admin" if tenant is None else "operator"
    values = texts(await read_form(request, scope))
    result = await send(
        request,
        partial(handlers.rotate_key, key_id=key_id, tenant=tenant),
        "keys.rotate",
        scope,
        body=msgspec.json.encode(rotate_body(values)),
        content_type=JSON,
        parse=handlers.parse_rotation,
        secret=True,
    )
    return await show_key(request, result.document, _home(tenant))


async def revoke(request: Request, key_id: str, tenant: str | None = None) -> Response:
    """Revokes a key."""
    scope = "admin" if tenant is None else "operator"
    handler = partial(handlers.remove_key, key_id=key_id, tenant=tenant)
    await send(request, handler, "keys.revoke", scope)
    return redirect(_home(tenant))


async def show_key(request: Request, key: Any, home: str) -> Response:
    """Returns the page that shows a new key."""
    return await respond(request, "key_made.html", status=201, made=key, home=home)


def _home(tenant: str | None) -> str:
    return "/keys" if tenant is None else f"/admin/{tenant}"


async def _list(
    request: Request, problem: Problem | None = None, values: dict[str, str] | None = None
) -> Response:
    query = listed(request, PAGE)
    page, rights = await read_and_rights(request, handlers.get_keys, query, scope="admin")
    return await respond(
        request,
        "keys.html",
        status=200 if problem is None else problem.status,
        keys=page["items"],
        next=page["next"],
        rights=rights,
        scopes=scopes_offered(rights),
        base="/keys",
        problem=problem,
        values=values or {},
    )
