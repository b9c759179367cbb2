"""Sessions of people who signed in: the cookie's 256 bits are stored as a hash only."""

from __future__ import annotations

import hashlib
import secrets
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from service.store.database import now
from service.store.keys import make_tenant
from service.store.tables import LoginSession, Tenant

MAX_SESSIONS = 20
"""Sessions that one person may have; the oldest end."""


def open_session(
    session: Session, subject: str, name: str, groups: list[str], tenant: str, lasts_s: float
) -> str:
    """Opens a session in a tenant, creating the tenant if needed. Returns the cookie's secret."""
    make_tenant(session, tenant)
    _end_oldest(session, subject)
    secret = secrets.token_urlsafe(32)
    session.add(
        LoginSession(
            id=_hash(secret),
            tenant_id=tenant,
            subject=subject,
            name=name,
            groups=groups,
            created_at=now(),
            expires_at=now() + lasts_s,
        )
    )
    session.flush()
    return secret


def find_session(
    session: Session, secret: str
) -> tuple[LoginSession, dict[str, Any], float] | None:
    """Returns a session with its tenant's limits and its remaining seconds; None without one."""
    left_s = LoginSession.expires_at - now()
    row = session.execute(
        select(LoginSession, Tenant.limits, left_s)
        .join(Tenant, Tenant.id == LoginSession.tenant_id)
        .where(LoginSession.id == _hash(secret), LoginSession.expires_at > now())
    ).first()
    return None if row is None else (row[0], row[1], row[2])


def move_session(session: Session, secret: str, tenant: str) -> str | None:
    """Moves a session to another tenant of its person. Returns its new secret; None if it ended.

    The old secret is invalid at once, so that no process can take the old tenant for the new.
    """
    row = session.scalar(
        select(LoginSession)
        .where(LoginSession.id == _hash(secret), LoginSession.expires_at > now())
        .with_for_update()
    )
    if row is None:
        return None
    make_tenant(session, tenant)
    fresh = secrets.token_urlsafe(32)
    row.id = _hash(fresh)
    row.tenant_id = tenant
    session.flush()
    return fresh


def close_session(session: Session, secret: str) -> LoginSession | None:
    """Ends a session. Returns its row; None if there was none."""
    row = session.get(LoginSession, _hash(secret))
    if row is not None:
        session.delete(row)
    return row


def end_sessions(session: Session, subject: str) -> list[str]:
    """Ends all sessions of a person. Returns the tenant of each."""
    gone = delete(LoginSession).where(LoginSession.subject == subject)
    return list(session.scalars(gone.returning(LoginSession.tenant_id)))


def _end_oldest(session: Session, subject: str) -> None:
    """Ends a person's oldest sessions, to leave room for one more."""
    newest = (
        select(LoginSession.id)
        .where(LoginSession.subject == subject)
        .order_by(LoginSession.created_at.desc(), LoginSession.id)
        .limit(MAX_SESSIONS - 1)
    )
    old = select(LoginSession.id).where(
        LoginSession.subject == subject, LoginSession.id.not_in(newest)
    )
    ids = session.scalars(old).all()
    if ids:
        session.execute(delete(LoginSession).where(LoginSession.id.in_(ids)))


def _hash(secret: str) -> str:
    # 256 random bits need no slow hash: there is nothing to guess.
    return hashlib.sha256(secret.encode()).hexdigest()
