"""What a service says of keys, tenants and the audit. Moments are ISO 8601."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

Scope = Literal["read", "submit", "agent", "admin", "operator"]
KeyState = Literal["active", "expired", "revoked"]
TenantState = Literal["active", "deleting"]


class KeySummary(msgspec.Struct, frozen=True, tag_field="schema", tag="shardwise.key-summary/1"):
    """A key without its secret."""

    id: str
    tenant: str
    name: str
    scopes: list[Scope]
    rate_per_s: float | None
    state: KeyState
    created_at: str
    created_by: str | None
    replaces: str | None
    expires_at: str | None
    last_used_at: str | None
    revoked_at: str | None


class Key(msgspec.Struct, frozen=True, tag_field="schema", tag="shardwise.key/1"):
    """A new key with its secret, which is shown once."""

    key: str
    id: str
    tenant: str
    name: str
    scopes: list[Scope]
    rate_per_s: float | None
    state: KeyState
    created_at: str
    created_by: str | None
    replaces: str | None
    expires_at: str | None
    last_used_at: str | None
    revoked_at: str | None


class KeyPage(msgspec.Struct, frozen=True, tag_field="schema", tag="shardwise.page/1"):
    """A page of keys; `next` is the cursor of the next one."""

    items: list[KeySummary]
    next: str | None


class Me(msgspec.Struct, frozen=True, tag_field="schema", tag="shardwise.me/1"):
    """Who asks: tenant, key, scopes, rate and limits."""

    tenant: str
    kind: Literal["key", "open"]
    key: KeySummary | None
    scopes: list[str]
    rate_per_s: float
    expires_at: str | None
    limits: dict[str, Any]


class AuditLine(msgspec.Struct, frozen=True, tag_field="schema", tag="shardwise.audit/1"):
    """One line of the audit: who did what to what, and how it ended."""

    id: str
    at: str
    tenant: str
    key: str | None
    actor: str | None
    request_id: str
    action: str
    target: str
    status: int


class AuditPage(msgspec.Struct, frozen=True, tag_field="schema", tag="shardwise.page/1"):
    """A page of the audit; `next` is the cursor of the next one."""

    items: list[AuditLine]
    next: str | None


class Tenant(msgspec.Struct, frozen=True, tag_field="schema", tag="shardwise.tenant/1"):
    """A tenant, its own limits, those in force, and what it uses."""

    id: str
    state: TenantState
    created_at: str
    deleting_at: str | None
    limits: dict[str, Any]
    limits_in_force: dict[str, Any] | UnsetType = UNSET
    usage: dict[str, Any] | UnsetType = UNSET


class TenantPage(msgspec.Struct, frozen=True, tag_field="schema", tag="shardwise.page/1"):
    """A page of tenants; `next` is the cursor of the next one."""

    items: list[Tenant]
    next: str | None
