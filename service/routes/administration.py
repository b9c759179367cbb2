"""/v1/me, /v1/keys, /v1/audit, /v1/tenants: calls of administrators and operators."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request, Response

from service.edge.http import call_of, read, write
from service.edge.state import state_of
from service.handlers import audit, keys, tenants
from service.handlers.audit import FORMATS, LINES
from service.handlers.tenant_archive import export_tenant
from service.openapi import administration_openapi as doc
from shardwise.errors import BadInput

me_router = APIRouter(prefix="/v1/me", tags=["keys"])
keys_router = APIRouter(prefix="/v1/keys", tags=["keys"])
audit_router = APIRouter(prefix="/v1/audit", tags=["audit"])
tenants_router = APIRouter(prefix="/v1/tenants", tags=["tenants"])
ROUTERS = (me_router, keys_router, audit_router, tenants_router)


@me_router.get("", **doc.get_me)
async def get_me(request: Request) -> Response:
    """The caller: tenant, key with its scopes and expiry, and the limits in force."""
    return await read(request, keys.get_me)


@keys_router.get("", **doc.list_keys)
async def get_keys(request: Request) -> Response:
    """The tenant's keys without their secrets, newest first; agents' own are not among them."""
    return await read(request, keys.get_keys, "admin")


@keys_router.post("", **doc.post_key)
async def post_key(request: Request) -> Response:
    """A new key, shown only once: at most with the caller's own scopes, rate and expiry.

    A repeat with the same Idempotency-Key gets another key and revokes the first, if it is unused.
    """
    return await write(request, keys.post_key, "keys.create", "admin", keys.parse_key, secret=True)


@keys_router.get("/{key_id}", **doc.get_key)
async def get_key(request: Request, key_id: str) -> Response:
    """One key, without its secret."""
    return await read(request, partial(keys.get_key, key_id=key_id), "admin")


@keys_router.post("/{key_id}/rotate", **doc.rotate_key)
async def rotate_key(request: Request, key_id: str) -> Response:
    """A new key with the same name, scopes, rate and lifetime, shown only once.

    The old one expires after the overlap. A repeat with the same Idempotency-Key gets another key
    and revokes the first, if it is unused.
    """
    handler = partial(keys.rotate_key, key_id=key_id)
    return await write(request, handler, "keys.rotate", "admin", keys.parse_rotation, secret=True)


@keys_router.delete("/{key_id}", **doc.delete_key)
async def delete_key(request: Request, key_id: str) -> Response:
    """Revoke a key; every process refuses it within a few seconds."""
    return await write(request, partial(keys.remove_key, key_id=key_id), "keys.revoke", "admin")


@audit_router.get("", **doc.get_audit)
async def get_audit(request: Request) -> Response:
    """Who changed what, newest first: as a page, or as JSON lines with the next cursor in a header.

    A tenant's administrator reads its own audit, an operator any tenant's.
    """
    return await read(request, partial(audit.get_audit, lines=_wants_lines(request)), "admin")


@tenants_router.get("", **doc.list_tenants)
async def get_tenants(request: Request) -> Response:
    """All tenants, newest first."""
    return await read(request, tenants.get_tenants, "operator")


@tenants_router.post("", **doc.post_tenant)
async def post_tenant(request: Request) -> Response:
    """Create a tenant; an existing one stays as it is."""
    return await write(
        request, tenants.post_tenant, "tenants.create", "operator", tenants.parse_tenant
    )


@tenants_router.get("/{tenant}", **doc.get_tenant)
async def get_tenant(request: Request, tenant: str) -> Response:
    """A tenant with its limits in force and its usage: the caller's own, or any for operators."""
    return await read(request, partial(tenants.get_tenant, tenant=tenant), "admin")


@tenants_router.patch("/{tenant}", **doc.patch_tenant)
async def patch_tenant(request: Request, tenant: str) -> Response:
    """Set a tenant's own values of limits; null restores the settings' value."""
    handler = partial(tenants.patch_tenant, tenant=tenant)
    return await write(request, handler, "tenants.limit", "operator", tenants.parse_limits)


@tenants_router.delete("/{tenant}", **doc.delete_tenant)
async def delete_tenant(request: Request, tenant: str) -> Response:
    """Delete a tenant with all its data; the header `Shardwise-Confirm` repeats its name.

    Its keys are revoked and its work is cancelled at once; a worker removes the rest.
    """
    confirmed = request.headers.get(tenants.CONFIRM_HEADER)
    handler = partial(tenants.remove_tenant, tenant=tenant, confirmed=confirmed)
    return await write(request, handler, "tenants.delete", "operator")


@tenants_router.get("/{tenant}/export", **doc.export_tenant)
async def get_export(request: Request, tenant: str) -> Response:
    """All data of a tenant as JSON in a tar.gz: the caller's own, or any for operators."""
    return await export_tenant(state_of(request), call_of(request), tenant)


@tenants_router.get("/{tenant}/keys", **doc.list_keys)
async def get_tenant_keys(request: Request, tenant: str) -> Response:
    """A tenant's keys without their secrets."""
    return await read(request, partial(keys.get_keys, tenant=tenant), "operator")


@tenants_router.post("/{tenant}/keys", **doc.post_key)
async def post_tenant_key(request: Request, tenant: str) -> Response:
    """A new key of a tenant, shown only once."""
    handler = partial(keys.post_key, tenant=tenant)
    return await write(request, handler, "keys.create", "operator", keys.parse_key, secret=True)


@tenants_router.get("/{tenant}/keys/{key_id}", **doc.get_key)
async def get_tenant_key(request: Request, tenant: str, key_id: str) -> Response:
    """One key of a tenant, without its secret."""
    handler = partial(keys.get_key, key_id=key_id, tenant=tenant)
    return await read(request, handler, "operator")


@tenants_router.post("/{tenant}/keys/{key_id}/rotate", **doc.rotate_key)
async def rotate_tenant_key(request: Request, tenant: str, key_id: str) -> Response:
    """A new key that replaces another of a tenant, shown only once."""
    handler = partial(keys.rotate_key, key_id=key_id, tenant=tenant)
    return await write(
        request, handler, "keys.rotate", "operator", keys.parse_rotation, secret=True
    )


@tenants_router.delete("/{tenant}/keys/{key_id}", **doc.delete_key)
async def delete_tenant_key(request: Request, tenant: str, key_id: str) -> Response:
    """Revoke a key of a tenant."""
    handler = partial(keys.remove_key, key_id=key_id, tenant=tenant)
    return await write(request, handler, "keys.revoke", "operator")


def _wants_lines(request: Request) -> bool:
    form = request.query_params.get("format")
    if form is not None and form not in FORMATS:
        raise BadInput(f"got {form[:40]!r}", field="format", expected=", ".join(FORMATS))
    return form == "jsonl" if form else LINES in request.headers.get("accept", "")
