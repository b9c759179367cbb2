"""What is kept beside the work: audit, Idempotency-Keys, workers; and when it is thrown away."""

from __future__ import annotations

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from service.redact import redacted
from service.settings import Settings
from service.store.database import now
from service.store.ids import new_id
from service.store.insert import insert_new
from service.store.launch_tables import Enrolment, Launch, LogLine, Report
from service.store.tables import Audit, Idempotency, WorkerRow

WORKER_FORGOTTEN_S = 3600.0


def record(
    session: Session,
    *,
    tenant: str,
    key_id: str | None,
    request_id: str,
    action: str,
    target: str,
    status: int,
) -> None:
    """One line of the audit."""
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
        )
    )


def reserve(session: Session, tenant: str, key: str, request_hash: str) -> Idempotency | None:
    """Take an Idempotency-Key for this request, or the row of who took it before.

    Two requests at once: the second waits for the first's transaction to end.
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
    session: Session, tenant: str, key: str, status: int, headers: dict[str, str], content: bytes
) -> None:
    """The answer that a repeat of this Idempotency-Key gets."""
    session.execute(
        update(Idempotency)
        .where(Idempotency.tenant_id == tenant, Idempotency.key == key)
        .values(status=status, headers=headers, content=content)
    )


def worker_seen(session: Session, worker_id: str, host: str, pid: int, slots: int) -> None:
    """That a worker process lives."""
    seen = session.execute(
        update(WorkerRow)
        .where(WorkerRow.id == worker_id)
        .values(seen_at=now())
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
        )


def worker_gone(session: Session, worker_id: str) -> None:
    """That a worker process has stopped in order."""
    session.execute(delete(WorkerRow).where(WorkerRow.id == worker_id))


def living_workers(session: Session, silent_s: float) -> list[WorkerRow]:
    """Workers that were seen within `silent_s`."""
    return list(session.scalars(select(WorkerRow).where(WorkerRow.seen_at > now() - silent_s)))


def throw_away(session: Session, settings: Settings) -> None:
    """Delete what has outlived its time."""
    ended = select(Launch.id).where(Launch.ended_at < now() - settings.log_s)
    session.execute(delete(LogLine).where(LogLine.launch_id.in_(ended)))
    for column, age_s in (
        (Report.received_at, settings.report_s),
        (Enrolment.expires_at, settings.audit_s),
        (Idempotency.created_at, settings.idempotency_s),
        (Audit.at, settings.audit_s),
        (WorkerRow.seen_at, WORKER_FORGOTTEN_S),
    ):
        session.execute(delete(column.class_).where(column < now() - age_s))
