"""Records about the work: audit, Idempotency-Keys, workers. When they go: retention.py."""

from __future__ import annotations

import hashlib
from typing import Any

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from service.base.redact import redacted
from service.store.database import clock, now
from service.store.ids import new_id
from service.store.insert import insert_new
from service.store.tables import Audit, Idempotency, WorkerRow

REFUSALS_S = 3600.0


def record(
    session: Session,
    *,
    tenant: str,
    key_id: str | None,
    request_id: str,
    action: str,
    target: str,
    status: int,
    actor: str | None = None,
) -> None:
    """Adds a line to the audit."""
    session.add(
        Audit(
            id=new_id("audit"),
            at=now(),
            tenant_id=tenant,
            key_id=key_id,
            request_id=request_id,
            action=action,
            target=redacted(target)[:500],
            status=status,
            actor=actor,
        )
    )


def record_refusal(
    session: Session, *, tenant: str, request_id: str, action: str, target: str, about: str
) -> None:
    """Adds a line to the audit, unless this hour has one with the same target and `about`.

    Callers without a key could otherwise fill it.
    """
    hour = int(clock(session) // REFUSALS_S)
    same = "\n".join((str(hour), tenant, action, target, about))
    insert_new(
        session,
        Audit,
        id=f"audit_{hashlib.sha256(same.encode()).hexdigest()[:32]}",
        at=now(),
        tenant_id=tenant,
        key_id=None,
        request_id=request_id,
        action=action,
        target=redacted(target)[:500],
        status=401,
    )


def reserve(session: Session, tenant: str, key: str, request_hash: str) -> Idempotency | None:
    """Takes an Idempotency-Key for this request. Returns None, or the row of an earlier request.

    Of two requests at once the second waits for the first's transaction to end.
    """
    mine = insert_new(
        session,
        Idempotency,
        tenant_id=tenant,
        key=key,
        request_hash=request_hash,
        created_at=now(),
        status=0,
        headers={},
        content=b"",
    )
    return None if mine else session.get(Idempotency, (tenant, key))


def remember(
    session: Session,
    tenant: str,
    key: str,
    status: int,
    headers: dict[str, str],
    content: bytes,
    reference: dict[str, Any] | None = None,
) -> None:
    """Stores the answer for repeats of an Idempotency-Key (service/edge/idempotency.py)."""
    session.execute(
        update(Idempotency)
        .where(Idempotency.tenant_id == tenant, Idempotency.key == key)
        .values(status=status, headers=headers, content=content, reference=reference)
    )


def worker_seen(session: Session, worker_id: str, host: str, pid: int, slots: int) -> None:
    """Records that a worker process lives."""
    seen = session.execute(
        update(WorkerRow)
        .where(WorkerRow.id == worker_id)
        .values(seen_at=now(), by_reference=True)
        .returning(WorkerRow.id)
    ).first()
    if seen is None:
        insert_new(
            session,
            WorkerRow,
            id=worker_id,
            host=host,
            pid=pid,
            slots=slots,
            started_at=now(),
            seen_at=now(),
            by_reference=True,
        )


def worker_gone(session: Session, worker_id: str) -> None:
    """Records that a worker process has stopped cleanly."""
    session.execute(delete(WorkerRow).where(WorkerRow.id == worker_id))


def living_workers(session: Session, silent_s: float) -> list[WorkerRow]:
    """Returns the workers that were seen within `silent_s`."""
    return list(session.scalars(select(WorkerRow).where(WorkerRow.seen_at > now() - silent_s)))
