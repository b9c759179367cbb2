"""Tenants: listed, created, read, limited, deleted. Their archives: tenant_archive.py."""

from __future__ import annotations

from typing import Any

import msgspec

from service.base.json_body import read_object
from service.base.problems import Problem
from service.edge.context import RequestContext, Result
from service.edge.state import State
from service.handlers.graphs import paging
from service.handlers.tenant_access import tell_tenant, tenant_row
from service.store.keys import LOCAL_TENANT, limits_in_force, make_tenant, require_tenant, set_limit
from service.store.pages import by_creation, page
from service.store.tables import Tenant
from service.store.tenant_admin import find_tenant, list_tenants, tenant_document, usage_of
from service.store.tenant_deletion import begin_deletion
from shardwise.errors import BadInput
from shardwise.validation import convert

CONFIRM_HEADER = "Shardwise-Confirm"


class TenantRequest(msgspec.Struct, forbid_unknown_fields=True):
    """`POST /v1/tenants`."""

    id: str
    limits: dict[str, float] = {}


class LimitsRequest(msgspec.Struct, forbid_unknown_fields=True):
    """`PATCH /v1/tenants/{tenant}`: values by name; null restores the settings' value."""

    limits: dict[str, float | None]


def parse_tenant(context: RequestContext) -> TenantRequest:
    """Returns the body of `POST /v1/tenants`. Raises BadInput."""
    return convert(read_object(context.body, context.settings.max_json_depth), TenantRequest)


def parse_limits(context: RequestContext) -> LimitsRequest:
    """Returns the body of a change of limits. Raises BadInput."""
    return convert(read_object(context.body, context.settings.max_json_depth), LimitsRequest)


def get_tenants(context: RequestContext) -> Result:
    """Returns a page of all tenants."""
    place, limit = paging(context)
    rows = list_tenants(context.session, place, limit)
    return Result(document=page(rows, limit, by_creation, tenant_document))


def get_tenant(context: RequestContext, tenant: str) -> Result:
    """Returns one tenant, with the limits in force and what it uses."""
    return Result(document=_whole(context, tenant_row(context, tenant)))


def post_tenant(context: RequestContext) -> Result:
    """Returns 201 for a new tenant, 200 for an existing one, whose limits stay as they are."""
    ask: TenantRequest = context.parsed
    known = context.session.get(Tenant, ask.id[:80]) is not None
    make_tenant(context.session, ask.id)
    if not known:
        _set_limits(context, ask.id, ask.limits)
    row = find_tenant(context.session, ask.id)
    headers = {"Location": f"/v1/tenants/{row.id}"}
    return Result(200 if known else 201, _whole(context, row), headers=headers)


def patch_tenant(context: RequestContext, tenant: str) -> Result:
    """Returns 200 with the tenant as it is now."""
    ask: LimitsRequest = context.parsed
    row = tenant_row(context, tenant)
    require_tenant(context.session, row.id)
    _set_limits(context, row.id, ask.limits)
    tell_tenant(context, row.id, "tenants.limit", f"/v1/tenants/{row.id}")
    return Result(document=_whole(context, find_tenant(context.session, row.id)))


def remove_tenant(context: RequestContext, tenant: str, confirmed: str | None) -> Result:
    """Returns 202: keys are revoked and work is stopped; the sweeper removes the data."""
    row = tenant_row(context, tenant)
    if row.id == LOCAL_TENANT:
        raise Problem("in-use", f"{row.id} is the tenant of services without keys: it stays")
    if row.id == context.tenant:
        raise Problem("in-use", "it is your own: an operator of another tenant may delete it")
    if confirmed != row.id:
        raise BadInput("not confirmed", field=CONFIRM_HEADER, expected="the tenant's name")
    begin_deletion(context.session, row, context.tenant)
    name = row.id

    def forget(state: State) -> None:
        state.answers.clear_tenant(name)

    return Result(202, tenant_document(row), after=[forget])


def _set_limits(context: RequestContext, tenant: str, limits: Any) -> None:
    for name, value in limits.items():
        set_limit(context.session, tenant, name, value)
    context.session.flush()


def _whole(context: RequestContext, row: Tenant) -> dict[str, Any]:
    in_force = limits_in_force(context.settings, row.limits)
    usage = usage_of(context.session, row.id)
    return {**tenant_document(row), "limits_in_force": in_force, "usage": usage}
