"""OpenAPI descriptions of the routes of keys, tenants and the audit."""

from __future__ import annotations

from typing import Any

from service.handlers.audit import FORMATS, LINES, MOST_LINES, NEXT_HEADER
from service.handlers.tenant_archive import MEDIA_TYPE
from service.handlers.tenants import CONFIRM_HEADER
from service.openapi.document import CHANGES, PAGING, READS, TEXT_TYPE, json_body, query, route
from service.store.pages import DEFAULT_LIMIT

_MOMENT = {"type": "string", "format": "date-time"}
_LIMIT = {"type": "integer", "minimum": 1, "maximum": MOST_LINES, "default": DEFAULT_LIMIT}

get_me = route({200: ("The caller", json_body("Me"))}, READS)
list_keys = route({200: ("A page", json_body("KeyPage"))}, (*READS, 404), parameters=PAGING)
get_key = route({200: ("The key", json_body("KeySummary"))}, (*READS, 404))
post_key = route(
    {201: ("The key, shown only once", json_body("Key"))},
    (*CHANGES, 404),
    body=json_body("KeyRequest"),
    create=True,
    status_code=201,
)
rotate_key = route(
    {201: ("The new key, shown only once", json_body("Key"))},
    (*CHANGES, 404),
    body=json_body("RotateRequest"),
    create=True,
    status_code=201,
)
delete_key = route({200: ("The key, revoked", json_body("KeySummary"))}, (*CHANGES, 404))

_audit_bodies: dict[str, Any] = {**json_body("AuditPage"), LINES: {"schema": TEXT_TYPE}}
get_audit = route(
    {200: (f"A page, or lines and `{NEXT_HEADER}` for the next ones", _audit_bodies)},
    (*READS, 404),
    parameters=[
        PAGING[0],
        query("limit", _LIMIT, "Items of a page, at most 200, or lines; 1000 lines if not given."),
        query("tenant", TEXT_TYPE, "Of this tenant; only operators may name another."),
        query("action", TEXT_TYPE, "Only this action (`keys.create`), or its first word (`keys`)."),
        query("key", TEXT_TYPE, "Only what this key did, by its id."),
        query("since", _MOMENT, "Only from this time on."),
        query("until", _MOMENT, "Only before this time."),
        query(
            "format",
            {"type": "string", "enum": list(FORMATS)},
            f"`jsonl` for JSON lines, as `Accept: {LINES}` does.",
        ),
    ],
)

list_tenants = route({200: ("A page", json_body("TenantPage"))}, READS, parameters=PAGING)
post_tenant = route(
    {
        201: ("The tenant was created", json_body("Tenant")),
        200: ("The tenant exists already", json_body("Tenant")),
    },
    CHANGES,
    body=json_body("TenantRequest"),
    create=True,
    status_code=201,
)
get_tenant = route({200: ("The tenant", json_body("Tenant"))}, (*READS, 404))
patch_tenant = route(
    {200: ("The tenant as it is now", json_body("Tenant"))},
    (*CHANGES, 404),
    body=json_body("LimitsRequest"),
)
delete_tenant = route(
    {202: ("The tenant is being deleted", json_body("Tenant"))},
    (*CHANGES, 404),
    parameters=[
        {
            "name": CONFIRM_HEADER,
            "in": "header",
            "required": True,
            "schema": TEXT_TYPE,
            "description": "The tenant's name, as confirmation.",
        }
    ],
    status_code=202,
)
export_tenant = route(
    {200: ("The archive", {MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}})},
    (*READS, 404),
)
