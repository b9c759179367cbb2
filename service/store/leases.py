"""Jobs as workers see them: claimed under a lease, kept alive, ended exactly once.

Every UPDATE is guarded by id, state and lease token, and every time is the database's: a worker
that was slow, suspended or cut off finds that its token is no longer the row's, and writes
nothing.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, and_, func, or_, select, update
from sqlalchemy.orm import Session

from service.problems import failure
from service.store.database import now
from service.store.insert import insert_new
from service.store.tables import Job, Result, Tenant


@dataclass(frozen=True)
class Claim:
    """A job that this worker may compute, while it holds the token."""

    job_id: str
    token: str
    tenant_id: str
    kind: str
    content_id: str
    graph_id: str
    question: dict[str, Any]
    request_id: str
    trace: str | None
    attempts: int
    limits: dict[str, Any]


def _expired() -> ColumnElement[bool]:
    return and_(Job.state == "running", Job.lease_expires_at < now())


def claim(session: Session, job_id: str, lease_s: float, max_attempts: int) -> Claim | None:
    """Take a job that is queued, or whose worker has gone silent; None when there is no such.

    A job that was given to `max_attempts` workers already is failed instead.
    """
    token = secrets.token_hex(16)
    taken = session.execute(
        update(Job)
        .where(Job.id == job_id, or_(Job.state == "queued", _expired()))
        .where(Job.attempts < max_attempts, Job.cancel_requested.is_(False))
        .values(
            state="running",
            stage="starting",
            progress=0.0,
            lease_token=token,
            lease_expires_at=now() + lease_s,
            attempts=Job.attempts + 1,
            started_at=func.coalesce(Job.started_at, now()),
        )
        .returning(Job.id)
    ).first()
    if taken is None:
        close_hopeless(session, max_attempts, job_id)
        return None
    job = session.get_one(Job, job_id)
    tenant = session.get_one(Tenant, job.tenant_id)
    return Claim(
        job.id,
        token,
        job.tenant_id,
        job.kind,
        job.content_id,
        job.graph_id,
        job.question,
        job.request_id,
        job.trace,
        job.attempts,
        tenant.limits,
    )


def close_hopeless(session: Session, max_attempts: int, job_id: str | None = None) -> list[str]:
    """End jobs that nobody works on and nobody will: cancelled, or too often their worker's end."""
    idle = or_(Job.state == "queued", _expired())
    if job_id is not None:
        idle = and_(idle, Job.id == job_id)
    free = {"lease_token": None, "lease_expires_at": None, "ended_at": now()}
    cancelled = session.scalars(
        update(Job)
        .where(idle, Job.cancel_requested.is_(True))
        .values(state="cancelled", **free)
        .returning(Job.id)
    ).all()
    lost = failure("worker-lost", f"{max_attempts} workers ended while they computed it")
    failed = session.scalars(
        update(Job)
        .where(idle, Job.attempts >= max_attempts)
        .values(state="failed", error=lost, **free)
        .returning(Job.id)
    ).all()
    return [*cancelled, *failed]


def _held(claim: Claim) -> ColumnElement[bool]:
    return and_(Job.id == claim.job_id, Job.state == "running", Job.lease_token == claim.token)


def keep_alive(
    session: Session, claim: Claim, lease_s: float, stage: str, progress: float
) -> bool | None:
    """Write progress, renew the lease; whether cancel is asked for; None: the lease is lost."""
    row = session.execute(
        update(Job)
        .where(_held(claim))
        .values(stage=stage[:200], progress=progress, lease_expires_at=now() + lease_s)
        .returning(Job.cancel_requested)
    ).first()
    return None if row is None else bool(row[0])


def finish(
    session: Session, claim: Claim, content: bytes, etag: str, answer_id: str | None
) -> bool:
    """Record the answer and end the job, both or neither; False: the lease is lost.

    A cancel that came before the answer stands: whoever asked again has a job of their own.
    """
    unwanted = select(Job.cancel_requested).where(_held(claim)).with_for_update()
    if session.scalar(unwanted):
        return cancelled(session, claim)
    if not _end(session, claim, "done", stage="", progress=1.0):
        return False
    insert_new(
        session,
        Result,
        tenant_id=claim.tenant_id,
        content_id=claim.content_id,
        kind=claim.kind,
        graph_id=claim.graph_id,
        answer_id=answer_id,
        created_at=now(),
        content=content,
        etag=etag,
    )
    return True


def fail(session: Session, claim: Claim, error: dict[str, Any]) -> bool:
    """End the job with its reason; False: the lease is lost."""
    return _end(session, claim, "failed", error=error)


def cancelled(session: Session, claim: Claim) -> bool:
    """End the job as its asker wished; False: the lease is lost."""
    return _end(session, claim, "cancelled")


def _end(session: Session, claim: Claim, state: str, **values: Any) -> bool:
    row = session.execute(
        update(Job)
        .where(_held(claim))
        .values(state=state, lease_token=None, lease_expires_at=None, ended_at=now(), **values)
        .returning(Job.id)
    ).first()
    return row is not None


def give_back(session: Session, claim: Claim, *, counts: bool) -> bool:
    """Queue the job again; `counts`: it ended its worker, so that the attempt is used up.

    `rung_at` 0 lets the next sweep ring at once.
    """
    row = session.execute(
        update(Job)
        .where(_held(claim))
        .values(
            state="queued",
            stage="",
            progress=0.0,
            lease_token=None,
            lease_expires_at=None,
            rung_at=0.0,
            attempts=Job.attempts if counts else Job.attempts - 1,
        )
        .returning(Job.id)
    ).first()
    return row is not None


def to_ring(session: Session, ring_again_s: float, most: int) -> list[str]:
    """Jobs that nobody works on and that were last rung for some time ago; marks them rung."""
    due = or_(
        and_(Job.state == "queued", Job.rung_at < now() - ring_again_s),
        and_(_expired(), Job.rung_at < now() - min(ring_again_s, 2.0)),
    )
    if most < 1:
        return []
    ids = session.scalars(select(Job.id).where(due).order_by(Job.created_at).limit(most)).all()
    rung = session.scalars(
        update(Job).where(Job.id.in_(ids), due).values(rung_at=now()).returning(Job.id)
    ).all()
    return sorted(rung, key=list(ids).index)


def free_all(session: Session) -> list[str]:
    """Queue every running job: for the embedded start, where no worker can be alive."""
    return list(
        session.scalars(
            update(Job)
            .where(Job.state == "running")
            .values(state="queued", lease_token=None, lease_expires_at=None, rung_at=0.0)
            .returning(Job.id)
        )
    )


def idle(session: Session) -> int:
    """Jobs that are to be computed and that nobody works on."""
    query = select(func.count()).where(or_(Job.state == "queued", _expired()))
    return int(session.scalar(query) or 0)
