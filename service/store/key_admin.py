"""People's keys as their administrators see them: listed, found, created, rotated, revoked.

Agents' own keys are not among them: they come and go with their agents.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, get_args

from sqlalchemy import func, or_, select, update
from sqlalchemy.orm import Session

from service.base.problems import Problem, not_found
from service.store.database import clock, now
from service.store.ids import iso
from service.store.keys import create_key, in_force
from service.store.pages import Place, after
from service.store.tables import Key
from service.store.tenants import lock_tenant
from shardwise.documents.administration import KeyState

KEY_SCHEMA = "shardwise.key/1"
SUMMARY_SCHEMA = "shardwise.key-summary/1"
KEY_STATES = get_args(KeyState)


@dataclass(frozen=True)
class NewKey:
    """The properties of a new key; `once` is the Idempotency-Key and request that ask for it."""

    name: str
    scopes: tuple[str, ...]
    rate_per_s: float | None
    expires_at: float | None
    created_by: str | None = None
    replaces: str | None = None
    once: str | None = None


def list_tenant_keys(session: Session, tenant: str, place: Place | None, limit: int) -> list[Key]:
    """Returns the tenant's keys, newest first."""
    query = select(Key).where(Key.tenant_id == tenant, Key.agent_id.is_(None))
    return list(session.scalars(after(query, Key.created_at, Key.id, place, limit)))


def find_key(session: Session, tenant: str | None, key_id: str) -> Key:
    """Returns a key of the tenant (None: of any). Raises a problem `not-found` if there is none."""
    key = session.get(Key, key_id)
    if key is None or key.agent_id is not None or tenant not in (None, key.tenant_id):
        raise not_found("key", key_id)
    return key


def count_keys(session: Session, tenant: str) -> int:
    """Returns how many of a tenant's keys are in force."""
    query = select(func.count()).where(Key.tenant_id == tenant, Key.agent_id.is_(None), in_force())
    return int(session.scalar(query) or 0)


def make_key(session: Session, tenant: str, new: NewKey, most: int) -> tuple[str, Key]:
    """Creates a key. Returns it with its row; the key itself is not stored, so it is shown once.

    A repeat of the same request cannot get the same key: it gets another one, and the first is
    revoked if it was not used. Raises a problem `quota` if the tenant has `most` keys in force.
    """
    lock_tenant(session, tenant)
    withdraw(session, tenant, new.once)
    if count_keys(session, tenant) >= most:
        raise Problem("quota", f"{most} keys are in force; revoke some")
    key = create_key(
        session,
        tenant,
        new.scopes,
        new.name,
        new.rate_per_s,
        expires_at=new.expires_at,
        created_by=new.created_by,
        replaces=new.replaces,
        once_hash=_hash(new.once),
    )
    row = session.get_one(Key, key.split("_")[1])
    session.refresh(row)
    return key, row


def withdraw(session: Session, tenant: str, once: str | None) -> Key | None:
    """Revokes the unused key that the same request created before, whose answer was lost.

    Returns that key.
    """
    if once is None:
        return None
    mine = (Key.tenant_id == tenant, Key.once_hash == _hash(once))
    unused = (Key.last_used_at.is_(None), Key.revoked_at.is_(None))
    gone = update(Key).where(*mine, *unused).values(revoked_at=now()).returning(Key.id)
    key_id = session.scalar(gone)
    return None if key_id is None else session.get(Key, key_id)


def end_after(session: Session, key: Key, seconds: float) -> None:
    """Lets a key expire after `seconds`, or earlier if it does so anyway; 0 revokes it."""
    if seconds <= 0:
        session.execute(update(Key).where(Key.id == key.id, in_force()).values(revoked_at=now()))
    else:
        later = or_(Key.expires_at.is_(None), Key.expires_at > now() + seconds)
        session.execute(
            update(Key).where(Key.id == key.id, later).values(expires_at=now() + seconds)
        )
    session.refresh(key)


def successor(session: Session, key: Key) -> str | None:
    """Returns the id of the key in force that this one was rotated to."""
    return session.scalar(select(Key.id).where(Key.replaces == key.id, in_force()).limit(1))


def is_in_force(session: Session, key: Key) -> bool:
    """Returns whether a key is neither revoked nor expired, by the database's clock."""
    return session.scalar(select(Key.id).where(Key.id == key.id, in_force())) is not None


def renewed_until(session: Session, key: Key) -> float | None:
    """Returns when a key of the same lifetime would expire if created now; None if never."""
    if key.expires_at is None:
        return None
    return clock(session) + max(key.expires_at - key.created_at, 1.0)


def key_document(key: Key, at: float) -> dict[str, Any]:
    """Returns a key without its secret as `shardwise.key-summary/1`; `at` is the time now."""
    return {
        "schema": SUMMARY_SCHEMA,
        "id": key.id,
        "tenant": key.tenant_id,
        "name": key.name,
        "scopes": key.scopes.split(","),
        "rate_per_s": key.rate_per_s,
        "state": key_state(key, at),
        "created_at": iso(key.created_at),
        "created_by": key.created_by,
        "replaces": key.replaces,
        "expires_at": iso(key.expires_at),
        "last_used_at": iso(key.last_used_at),
        "revoked_at": iso(key.revoked_at),
    }


def key_state(key: Key, at: float) -> str:
    """Returns active, expired or revoked; the sweeper's mark on an expired key does not count."""
    if key.revoked_at is not None and not (
        key.expires_at is not None and key.revoked_at >= key.expires_at
    ):
        return "revoked"
    if key.expires_at is not None and key.expires_at <= at:
        return "expired"
    return "active"


def _hash(once: str | None) -> str | None:
    return None if once is None else hashlib.sha256(once.encode()).hexdigest()
