"""Keys over HTTP: listed, created, rotated, revoked; and who the caller is."""

from __future__ import annotations

from typing import Any

import msgspec

from service.base.durations import moment_of
from service.base.json_body import read_object
from service.base.problems import Problem, not_found
from service.edge.context import RequestContext, Result
from service.edge.grants import Grant, bounded, require_key, require_own_scopes
from service.handlers.graphs import paging
from service.handlers.tenant_access import tell_tenant, tenant_of, tenant_row
from service.store.database import clock
from service.store.ids import iso
from service.store.key_admin import (
    KEY_SCHEMA,
    NewKey,
    end_after,
    find_key,
    is_in_force,
    key_document,
    list_tenant_keys,
    make_key,
    renewed_until,
    successor,
    withdraw,
)
from service.store.keys import MAX_EXPIRES_S, limits_in_force, require_tenant, revoke_key
from service.store.pages import by_creation, page
from service.store.quotas import room_of
from service.store.tables import Key
from service.store.tenants import lock_tenant
from shardwise.errors import BadInput
from shardwise.validation import convert

ME_SCHEMA = "shardwise.me/1"
MAX_NAME = 200
MAX_OVERLAP_S = 30 * 86400.0


class KeyRequest(msgspec.Struct, forbid_unknown_fields=True):
    """`POST /v1/keys`. The expiry is in seconds from now or a date; optional."""

    name: str = ""
    scopes: list[str] = msgspec.field(default_factory=lambda: ["read", "submit"])
    rate_per_s: float | None = None
    expires_s: float | None = None
    expires_at: str | None = None


class RotateRequest(msgspec.Struct, forbid_unknown_fields=True):
    """`POST /v1/keys/{id}/rotate`: how long the old key stays valid."""

    overlap_s: float = 3600.0


def parse_key(context: RequestContext) -> KeyRequest:
    """Returns the body of `POST /v1/keys`, which may be empty. Raises BadInput."""
    ask = convert(_body(context), KeyRequest)
    if len(ask.name) > MAX_NAME:
        raise BadInput("too long", field="name", expected=f"at most {MAX_NAME} characters")
    if ask.expires_s is not None and ask.expires_at is not None:
        raise BadInput(
            "got both expires_at and expires_s", field="expires_at", expected="one of them"
        )
    if ask.expires_s is not None and not 1 <= ask.expires_s <= MAX_EXPIRES_S:
        expected = f"1 to {MAX_EXPIRES_S:g} seconds"
        raise BadInput(f"got {ask.expires_s:g}", field="expires_s", expected=expected)
    if ask.expires_at is not None:
        moment_of(ask.expires_at, "expires_at")
    return ask


def parse_rotation(context: RequestContext) -> RotateRequest:
    """Returns the body of a rotation, which may be empty. Raises BadInput."""
    ask = convert(_body(context), RotateRequest)
    if not 0 <= ask.overlap_s <= MAX_OVERLAP_S:
        expected = f"0 to {MAX_OVERLAP_S:g} seconds"
        raise BadInput(f"got {ask.overlap_s:g}", field="overlap_s", expected=expected)
    return ask


def get_me(context: RequestContext) -> Result:
    """Returns who the caller is: tenant, key, scopes, expiry and limits."""
    who = context.principal
    row = None if who.key_id is None else context.session.get(Key, who.key_id)
    document = {
        "schema": ME_SCHEMA,
        "tenant": who.tenant,
        "kind": who.kind,
        "key": None if row is None else key_document(row, clock(context.session)),
        "scopes": sorted(who.scopes),
        "rate_per_s": context.settings.rate_per_s if who.rate_per_s is None else who.rate_per_s,
        "expires_at": iso(who.key_expires_at),
        "limits": limits_in_force(context.settings, context.principal.limits),
    }
    return Result(document=document)


def get_keys(context: RequestContext, tenant: str | None = None) -> Result:
    """Returns a page of a tenant's keys, without their secrets."""
    place, limit = paging(context)
    # The tenant of a service without keys may have no row yet.
    name = context.tenant if tenant is None else tenant_row(context, tenant).id
    rows = list_tenant_keys(context.session, name, place, limit)
    at = clock(context.session)
    return Result(document=page(rows, limit, by_creation, lambda key: key_document(key, at)))


def get_key(context: RequestContext, key_id: str, tenant: str | None = None) -> Result:
    """Returns one key, without its secret."""
    return Result(document=key_document(_key(context, key_id, tenant), clock(context.session)))


def post_key(context: RequestContext, tenant: str | None = None) -> Result:
    """Returns 201 with a new key, which is shown only once."""
    ask: KeyRequest = context.parsed
    name = tenant_row(context, tenant).id
    require_tenant(context.session, name)
    asked = Grant(tuple(ask.scopes), ask.rate_per_s, _expiry(context, ask))
    grant = bounded(context.principal, name, asked, context.settings.rate_per_s)
    new = NewKey(
        ask.name,
        grant.scopes,
        grant.rate_per_s,
        grant.expires_at,
        created_by=context.principal.key_id,
        once=_once(context, f"create in {name}"),
    )
    key, row = make_key(context.session, name, new, _most_keys(context, name))
    where = f"/v1/keys/{row.id}" if tenant is None else f"/v1/tenants/{name}/keys/{row.id}"
    tell_tenant(context, name, "keys.create", where, 201)
    return _shown(context, key, row, {"Location": where})


def rotate_key(context: RequestContext, key_id: str, tenant: str | None = None) -> Result:
    """Returns 201 with a key that replaces another; the old one is valid for the overlap."""
    ask: RotateRequest = context.parsed
    old = _key(context, key_id, tenant)
    require_tenant(context.session, old.tenant_id)
    # Rotations at once take turns: each would replace the key, unseen by the others.
    lock_tenant(context.session, old.tenant_id)
    once = _once(context, f"rotate {old.id}")
    before = withdraw(context.session, old.tenant_id, once)
    if before is None and not is_in_force(context.session, old):
        raise not_found("key in force", old.id)
    if (taken := successor(context.session, old)) is not None:
        raise Problem("in-use", f"it was rotated to {taken}: rotate that one")
    until = renewed_until(context.session, old) if before is None else before.expires_at
    asked = Grant(tuple(old.scopes.split(",")), old.rate_per_s, until)
    usual = context.settings.rate_per_s
    grant = bounded(context.principal, old.tenant_id, asked, usual, exact=True)
    new = NewKey(
        old.name,
        grant.scopes,
        grant.rate_per_s,
        grant.expires_at,
        created_by=context.principal.key_id,
        replaces=old.id,
        once=once,
    )
    end_after(context.session, old, ask.overlap_s)
    # The old key and the new one count as one until the overlap is over.
    key, row = make_key(context.session, old.tenant_id, new, _most_keys(context, old.tenant_id) + 1)
    tell_tenant(context, old.tenant_id, "keys.rotate", f"/v1/keys/{old.id}", 201)
    return _shown(context, key, row, {})


def remove_key(context: RequestContext, key_id: str, tenant: str | None = None) -> Result:
    """Returns 200 with the key as it is now: revoked."""
    key = _key(context, key_id, tenant)
    require_key(context.principal)
    if not context.principal.may("operator"):
        require_own_scopes(context.principal, tuple(key.scopes.split(",")))
    if is_in_force(context.session, key):
        revoke_key(context.session, key.id)
        context.session.refresh(key)
    tell_tenant(context, key.tenant_id, "keys.revoke", f"/v1/keys/{key.id}")
    return Result(document=key_document(key, clock(context.session)))


def _key(context: RequestContext, key_id: str, tenant: str | None) -> Key:
    return find_key(context.session, tenant_of(context, tenant), key_id[:80])


def _most_keys(context: RequestContext, tenant: str) -> int:
    return room_of(context.session, context.settings, tenant).limit("max_keys")


def _shown(context: RequestContext, key: str, row: Key, headers: dict[str, str]) -> Result:
    document = {**key_document(row, clock(context.session)), "schema": KEY_SCHEMA, "key": key}
    return Result(201, document, headers={**headers, "Cache-Control": "no-store"})


def _expiry(context: RequestContext, ask: KeyRequest) -> float | None:
    if ask.expires_at is not None:
        return moment_of(ask.expires_at, "expires_at")
    return None if ask.expires_s is None else clock(context.session) + ask.expires_s


def _once(context: RequestContext, what: str) -> str | None:
    if context.idempotency_key is None:
        return None
    return f"{context.idempotency_key}\n{what}\n{context.body.hex()}"


def _body(context: RequestContext) -> dict[str, Any]:
    return read_object(context.body or b"{}", context.settings.max_json_depth)
