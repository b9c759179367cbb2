"""`/admin`: tenants for operators: listed, created, limited, exported, deleted, given keys."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec
from fastapi import Request, Response

from service.base.problems import Problem, problem_of
from service.edge.state import state_of
from service.handlers import keys as key_handlers
from service.handlers import tenants as handlers
from service.handlers.tenant_archive import export_tenant
from service.page.forms import read_form, texts
from service.page.inner import listed, page_call, read, read_and_rights, send
from service.page.render import redirect, respond
from service.page.views.key_forms import scopes_offered
from service.page.views.keys import JSON, make_key, show_key
from service.store.keys import LIMITS
from shardwise.errors import ShardwiseError
from shardwise.sizes import parse_amount

PAGE = "50"
KEYS = "200"
SHOWN = (400, 409, 422, 429)
"""Statuses of refusals that are shown above the submitted form."""


async def show_all(request: Request) -> Response:
    """Returns all tenants, newest first."""
    return await _list(request)


async def make(request: Request) -> Response:
    """Creates a tenant. Redirects to its page."""
    values = texts(await read_form(request, "operator"))
    try:
        body = msgspec.json.encode({"id": values.get("tenant", "")})
        await send(
            request, handlers.post_tenant, "tenants.create", "operator",
            body=body, content_type=JSON, parse=handlers.parse_tenant,
        )  # fmt: skip
    except ShardwiseError as error:
        return await _list(request, _shown(error), values)
    return redirect(f"/admin/{values['tenant']}")


async def show(request: Request, tenant: str) -> Response:
    """Returns one tenant: what it uses, its limits, its keys."""
    return await _one(request, tenant)


async def limit(request: Request, tenant: str) -> Response:
    """Sets limits; an empty field restores the settings' value."""
    values = texts(await read_form(request, "operator"))
    try:
        body = msgspec.json.encode({"limits": _limits(values)})
        await send(
            request, partial(handlers.patch_tenant, tenant=tenant), "tenants.limit", "operator",
            body=body, content_type=JSON, parse=handlers.parse_limits,
        )  # fmt: skip
    except ShardwiseError as error:
        return await _one(request, tenant, _shown(error), values)
    return redirect(f"/admin/{tenant}")


async def make_tenant_key(request: Request, tenant: str) -> Response:
    """Returns a new key of a tenant, shown on this page and never again."""
    values = texts(await read_form(request, "operator"))
    try:
        key = await make_key(request, tenant, values)
    except ShardwiseError as error:
        return await _one(request, tenant, _shown(error), values)
    return await show_key(request, key, f"/admin/{tenant}")


async def export(request: Request, tenant: str) -> Response:
    """Returns the archive of a tenant."""
    return await export_tenant(state_of(request), page_call(request), tenant)


async def delete(request: Request, tenant: str) -> Response:
    """Deletes a tenant whose name was typed."""
    values = texts(await read_form(request, "operator"))
    handler = partial(handlers.remove_tenant, tenant=tenant, confirmed=values.get("confirm"))
    try:
        await send(request, handler, "tenants.delete", "operator")
    except ShardwiseError as error:
        return await _one(request, tenant, _shown(error), values)
    return redirect("/admin")


def _limits(values: Mapping[str, str]) -> dict[str, float | None]:
    return {name: parse_amount(values[name], name) if name in values else None for name in LIMITS}


def _shown(error: ShardwiseError) -> Problem:
    """Returns the problem if it can be fixed in the form, else raises the error again."""
    problem = problem_of(error)
    if problem.status not in SHOWN:
        raise error
    return problem


async def _list(
    request: Request, problem: Problem | None = None, values: dict[str, str] | None = None
) -> Response:
    page = await read(request, handlers.get_tenants, listed(request, PAGE), scope="operator")
    return await respond(
        request,
        "tenants.html",
        status=200 if problem is None else problem.status,
        tenants=page["items"],
        next=page["next"],
        problem=problem,
        values=values or {},
    )


async def _one(
    request: Request,
    tenant: str,
    problem: Problem | None = None,
    values: dict[str, str] | None = None,
) -> Response:
    handler = partial(handlers.get_tenant, tenant=tenant)
    document, rights = await read_and_rights(request, handler, scope="operator")
    keys = await read(
        request, partial(key_handlers.get_keys, tenant=tenant), {"limit": KEYS}, scope="operator"
    )
    return await respond(
        request,
        "tenant.html",
        status=200 if problem is None else problem.status,
        tenant=document,
        limits=[_limit_row(document, name) for name in document["limits_in_force"]],
        keys=keys["items"],
        rights=rights,
        scopes=scopes_offered(rights),
        base=f"/admin/{document['id']}/keys",
        problem=problem,
        values=values or {},
    )


def _limit_row(tenant: dict[str, Any], name: str) -> dict[str, Any]:
    own = tenant["limits"].get(name)
    return {
        "name": name,
        "own": "" if own is None else f"{own:.15g}",
        "in_force": f"{tenant['limits_in_force'][name]:.15g}",
    }
