"""The shapes of answers about keys, tenants and the audit as JSON Schema, and examples."""

from __future__ import annotations

from typing import Any

from service.shapes import NUMBER, OBJECT, TEXT, WHOLE, Shape, maybe, of, page, ref, schema, several
from service.store.key_admin import KEY_STATES
from service.store.keys import KINDS, SCOPES
from service.store.tenant_admin import TENANT_STATES

_KEY: dict[str, Shape] = {
    "id": TEXT,
    "tenant": TEXT,
    "name": TEXT,
    "scopes": several({"type": "string", "enum": list(SCOPES)}),
    "rate_per_s": maybe(NUMBER),
    "state": {"type": "string", "enum": list(KEY_STATES)},
    "created_at": TEXT,
    "created_by": maybe(TEXT),
    "replaces": maybe(TEXT),
    "expires_at": maybe(TEXT),
    "last_used_at": maybe(TEXT),
    "revoked_at": maybe(TEXT),
}

ADMINISTRATION_SHAPES: dict[str, Shape] = {
    "Me": of(
        schema=schema("me"), tenant=TEXT, kind={"type": "string", "enum": list(KINDS)},
        key=maybe(ref("KeySummary")), scopes=several(TEXT), rate_per_s=NUMBER,
        expires_at=maybe(TEXT), limits=OBJECT,
    ),
    "KeySummary": of(schema=schema("key-summary"), **_KEY),
    "Key": of(schema=schema("key"), key=TEXT, **_KEY),
    "KeyPage": page("KeySummary"),
    "AuditLine": of(
        schema=schema("audit"), id=TEXT, at=TEXT, tenant=TEXT, key=maybe(TEXT), actor=maybe(TEXT),
        request_id=TEXT, action=TEXT, target=TEXT, status=WHOLE,
    ),
    "AuditPage": page("AuditLine"),
    "Tenant": of(
        "schema", "id", "state", "created_at", "deleting_at", "limits",
        schema=schema("tenant"), id=TEXT, state={"type": "string", "enum": list(TENANT_STATES)},
        created_at=TEXT, deleting_at=maybe(TEXT), limits=OBJECT, limits_in_force=OBJECT,
        usage=OBJECT,
    ),
    "TenantPage": page("Tenant"),
}  # fmt: skip

ADMINISTRATION_EXAMPLES: dict[str, Any] = {
    "KeyRequest": {"name": "ci", "scopes": ["read", "submit"], "expires_s": 7776000.0},
    "RotateRequest": {"overlap_s": 3600.0},
    "TenantRequest": {"id": "research", "limits": {"max_queued": 50}},
    "LimitsRequest": {"limits": {"max_queued": 50, "max_graphs": None}},
}
