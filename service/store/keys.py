"""Keys and tenants. A key is `sw_ID_SECRET`; only a hash of the secret is stored."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from service.store.database import now
from service.store.insert import insert_new
from service.store.tables import Key, Tenant
from shardwise.errors import BadInput, NotFound

SCOPES = ("read", "submit", "agent", "admin")
LOCAL_TENANT = "local"
"""Whose everything is where no keys are needed."""

_NAME = re.compile(r"^[a-z0-9][a-z0-9._-]{0,63}$")
_KEY = re.compile(r"^sw_([0-9a-f]{16})_([0-9A-Za-z_-]{43})$")
LIMITS = ("max_queued", "max_graphs", "max_stored_bytes", "solve_time_s", "solve_memory_bytes")
"""Settings that a tenant may have its own value of."""


@dataclass(frozen=True)
class Principal:
    """Who asks: a tenant through a key with scopes; `key_id` None where no keys are needed."""

    tenant: str
    key_id: str | None
    scopes: frozenset[str]
    rate_per_s: float | None
    limits: dict[str, Any]
    agent_id: str | None = None

    def may(self, scope: str) -> bool:
        """Whether a scope is held; admin holds all."""
        return scope in self.scopes or "admin" in self.scopes


def make_tenant(session: Session, tenant: str) -> None:
    """A tenant, unless it is there. BadInput for an ill-formed name."""
    if not _NAME.match(tenant):
        raise BadInput(
            f"{tenant!r}", field="tenant", expected="small letters, digits, '.', '_', '-'"
        )
    insert_new(session, Tenant, id=tenant, created_at=now(), limits={})


def create_key(
    session: Session,
    tenant: str,
    scopes: tuple[str, ...],
    name: str = "",
    rate_per_s: float | None = None,
    agent_id: str | None = None,
) -> str:
    """A new key of a tenant, made if need be. The answer is the only time its secret is seen.

    With `agent_id` it is that agent's: enrolment makes it (store/enrolment.py).
    """
    for scope in scopes:
        if scope not in SCOPES:
            raise BadInput(f"unknown scope {scope!r}", field="scope", expected=", ".join(SCOPES))
    if not scopes:
        raise BadInput("no scopes", field="scope", expected=", ".join(SCOPES))
    make_tenant(session, tenant)
    key_id, secret = secrets.token_hex(8), secrets.token_urlsafe(32)
    session.add(
        Key(
            id=key_id,
            tenant_id=tenant,
            name=name[:200],
            secret_hash=_hash(secret),
            scopes=",".join(sorted(set(scopes))),
            rate_per_s=rate_per_s,
            created_at=now(),
            agent_id=agent_id,
        )
    )
    session.flush()
    return f"sw_{key_id}_{secret}"


def list_keys(session: Session) -> list[Key]:
    """All keys, oldest first."""
    return list(session.scalars(select(Key).order_by(Key.created_at, Key.id)))


def revoke_key(session: Session, key_id: str) -> None:
    """Make a key worthless; NotFound for one that does not exist or is revoked already."""
    done = session.execute(
        update(Key)
        .where(Key.id == key_id, Key.revoked_at.is_(None))
        .values(revoked_at=now())
        .returning(Key.id)
    ).first()
    if done is None:
        raise NotFound(f"there is no key {key_id} in force")


def set_limit(session: Session, tenant: str, name: str, value: float | None) -> None:
    """Give a tenant its own value of a setting, or take it away again (None)."""
    if name not in LIMITS:
        raise BadInput(f"unknown limit {name!r}", field="limit", expected=", ".join(LIMITS))
    make_tenant(session, tenant)
    row = session.get_one(Tenant, tenant, with_for_update=True)
    limits = {key: old for key, old in row.limits.items() if key != name}
    row.limits = limits if value is None else {**limits, name: value}


def any_keys(session: Session) -> bool:
    """Whether a key was ever made; then keys are needed, even when all are revoked.

    Agents' own keys do not count: an agent of an open service has one, and it stays open.
    """
    return bool(session.scalar(select(func.count()).where(Key.agent_id.is_(None))))


def keys_in_force(session: Session) -> int:
    """How many keys are not revoked, agents' own not counted."""
    usable = (Key.revoked_at.is_(None), Key.agent_id.is_(None))
    return int(session.scalar(select(func.count()).where(*usable)) or 0)


def principal_of(session: Session, text: str) -> Principal | None:
    """Who presents this key; None for what is no key in force."""
    match = _KEY.match(text)
    if match is None:
        return None
    row = session.execute(
        select(Key, Tenant.limits)
        .join(Tenant, Tenant.id == Key.tenant_id)
        .where(Key.id == match[1], Key.revoked_at.is_(None))
    ).first()
    # The hash is compared even when there is no such key: both take the same time.
    stored = row[0].secret_hash if row else "0" * 64
    if not hmac.compare_digest(stored, _hash(match[2])) or row is None:
        return None
    key = row[0]
    return Principal(
        key.tenant_id,
        key.id,
        frozenset(key.scopes.split(",")),
        key.rate_per_s,
        row[1],
        key.agent_id,
    )


def local_principal(session: Session) -> Principal:
    """Who asks where no keys are needed: everything is allowed."""
    row = session.get(Tenant, LOCAL_TENANT)
    return Principal(LOCAL_TENANT, None, frozenset(SCOPES), None, row.limits if row else {})


def _hash(secret: str) -> str:
    # 256 random bits need no slow hash: there is nothing to guess.
    return hashlib.sha256(secret.encode()).hexdigest()
