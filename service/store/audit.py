"""The audit as its readers see it: newest first, filtered, in pages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from service.store.ids import iso
from service.store.pages import Place, after
from service.store.tables import Audit

AUDIT_SCHEMA = "shardwise.audit/1"


@dataclass(frozen=True)
class AuditFilter:
    """The lines that a reader wants to see; times are seconds since 1970, `until` is not included.

    `action` is a whole action (`keys.create`) or its first word (`keys`).
    """

    action: str | None = None
    key_id: str | None = None
    since: float | None = None
    until: float | None = None


def list_audit(
    session: Session, tenant: str | None, wanted: AuditFilter, place: Place | None, limit: int
) -> list[Audit]:
    """Returns up to `limit` + 1 lines of a tenant (None: of all) after `place`, newest first."""
    query = select(Audit)
    if tenant is not None:
        query = query.where(Audit.tenant_id == tenant)
    if wanted.action is not None:
        word = Audit.action.startswith(f"{wanted.action}.", autoescape=True)
        query = query.where(or_(Audit.action == wanted.action, word))
    if wanted.key_id is not None:
        query = query.where(Audit.key_id == wanted.key_id)
    if wanted.since is not None:
        query = query.where(Audit.at >= wanted.since)
    if wanted.until is not None:
        query = query.where(Audit.at < wanted.until)
    return list(session.scalars(after(query, Audit.at, Audit.id, place, limit)))


def audit_document(row: Audit) -> dict[str, Any]:
    """Returns a line as `shardwise.audit/1`."""
    return {
        "schema": AUDIT_SCHEMA,
        "id": row.id,
        "at": iso(row.at),
        "tenant": row.tenant_id,
        "key": row.key_id,
        "actor": row.actor,
        "request_id": row.request_id,
        "action": row.action,
        "target": row.target,
        "status": row.status,
    }
