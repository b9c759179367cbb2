"""Tenants over HTTP: listed, made, looked at, limited, deleted; archived: tenant_archive.py."""

from __future__ import annotations

from typing import Any

import msgspec

from service.edge import Answer, Call
from service.handlers.graphs import paging
from service.handlers.tenant_access import tell_tenant, tenant_row
from service.json_body import convert, read_object
from service.problems import Problem
from service.state import State
from service.store.keys import LOCAL_TENANT, limits_in_force, make_tenant, require_tenant, set_limit
from service.store.pages import by_creation, page
from service.store.tables import Tenant
from service.store.tenant_admin import find_tenant, list_tenants, tenant_document, usage_of
from service.store.tenant_deletion import begin_deletion
from shardwise.errors import BadInput

CONFIRM_HEADER = "Shardwise-Confirm"


class TenantRequest(msgspec.Struct, forbid_unknown_fields=True):
    """`POST /v1/tenants`."""

    id: str
    limits: dict[str, float] = {}


class LimitsRequest(msgspec.Struct, forbid_unknown_fields=True):
    """`PATCH /v1/tenants/{tenant}`: values by name; null takes the settings' value again."""

    limits: dict[str, float | None]


def parse_tenant(call: Call) -> TenantRequest:
    """Returns the body of `POST /v1/tenants`. Raises BadInput."""
    return convert(read_object(call.body, call.settings.max_json_depth), TenantRequest)


def parse_limits(call: Call) -> LimitsRequest:
    """Returns the body of a change of limits. Raises BadInput."""
    return convert(read_object(call.body, call.settings.max_json_depth), LimitsRequest)


def get_tenants(call: Call) -> Answer:
    """A page of all tenants."""
    place, limit = paging(call)
    rows = list_tenants(call.session, place, limit)
    return Answer(document=page(rows, limit, by_creation, tenant_document))


def get_tenant(call: Call, tenant: str) -> Answer:
    """One tenant, with the limits in force and what it uses."""
    return Answer(document=_whole(call, tenant_row(call, tenant)))


def post_tenant(call: Call) -> Answer:
    """201 for a tenant that is new, 200 for one that is there; then its limits stay as they are."""
    ask: TenantRequest = call.parsed
    known = call.session.get(Tenant, ask.id[:80]) is not None
    make_tenant(call.session, ask.id)
    if not known:
        _set_limits(call, ask.id, ask.limits)
    row = find_tenant(call.session, ask.id)
    headers = {"Location": f"/v1/tenants/{row.id}"}
    return Answer(200 if known else 201, _whole(call, row), headers=headers)


def patch_tenant(call: Call, tenant: str) -> Answer:
    """200 with the tenant as it is now."""
    ask: LimitsRequest = call.parsed
    row = tenant_row(call, tenant)
    require_tenant(call.session, row.id)
    _set_limits(call, row.id, ask.limits)
    tell_tenant(call, row.id, "tenants.limit", f"/v1/tenants/{row.id}")
    return Answer(document=_whole(call, find_tenant(call.session, row.id)))


def remove_tenant(call: Call, tenant: str, confirmed: str | None) -> Answer:
    """202: its keys are revoked and its work is stopped; the sweeper removes what it has."""
    row = tenant_row(call, tenant)
    if row.id == LOCAL_TENANT:
        raise Problem("in-use", f"{row.id} is the tenant of services without keys: it stays")
    if row.id == call.tenant:
        raise Problem("in-use", "it is your own: an operator of another tenant may delete it")
    if confirmed != row.id:
        raise BadInput("not confirmed", field=CONFIRM_HEADER, expected="the tenant's name")
    begin_deletion(call.session, row, call.tenant)
    name = row.id

    def forget(state: State) -> None:
        state.answers.clear_tenant(name)

    return Answer(202, tenant_document(row), after=[forget])


def _set_limits(call: Call, tenant: str, limits: Any) -> None:
    for name, value in limits.items():
        set_limit(call.session, tenant, name, value)
    call.session.flush()


def _whole(call: Call, row: Tenant) -> dict[str, Any]:
    in_force = limits_in_force(call.settings, row.limits)
    usage = usage_of(call.session, row.id)
    return {**tenant_document(row), "limits_in_force": in_force, "usage": usage}
