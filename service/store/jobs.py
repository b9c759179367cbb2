"""Jobs as callers see them: found or created, read, cancelled. Workers' side: leases.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from service.base.problems import Problem, not_found
from service.questions.fair_order import turn_s
from service.questions.question import Question
from service.store.attained import start_among_others
from service.store.curve_answers import set_aside
from service.store.database import now
from service.store.estimates import Estimate
from service.store.ids import iso, new_id
from service.store.insert import inserted
from service.store.outbox import jobs_ended
from service.store.question_blobs import put_aside
from service.store.tables import ACTIVE, ENDED, Job
from shardwise.documents.questions import COLLECTIONS

JOB_SCHEMA = "shardwise.job/1"
_WANTED = (*ACTIVE, "done")
UNKNOWN_S = 5.0
"""The cost of a job without an estimate."""


def job_for(session: Session, tenant: str, content_id: str) -> Job | None:
    """Returns the tenant's job that computes or has computed the question of this content id."""
    return session.scalar(
        select(Job).where(
            Job.tenant_id == tenant,
            Job.content_id == content_id,
            Job.state.in_(_WANTED),
            Job.cancel_requested.is_(False),
        )
    )


def find_or_make_job(
    session: Session,
    tenant: str,
    question: Question,
    *,
    max_queued: int,
    key_id: str | None,
    request_id: str,
    trace: str | None,
    priority: int = 0,
    estimate: Callable[[], Estimate] | None = None,
    goes_on: Callable[[Job], bool] = lambda job: False,
) -> tuple[Job, bool]:
    """Returns the one job of a question and whether it is new (then it is to be rung for).

    Of any number of calls at once the unique index lets one row in (single flight); of their
    priorities the highest counts. Raises a problem `queue-full` if the tenant has too many jobs.
    `estimate` returns the cost of a new job; `goes_on` whether a job that is done needs another one
    after it.
    """
    known = job_for(session, tenant, question.content_id)
    old = known if known is not None and known.state == "done" and goes_on(known) else None
    if known is not None and old is None:
        raise_priority(session, known, priority)
        return known, False
    active = active_jobs(session, tenant)
    if active >= max_queued:
        raise Problem(
            "queue-full",
            f"{max_queued} jobs are queued or running; ask again when some are done",
            headers={"Retry-After": "5"},
        )
    if old is not None:
        set_aside(session, old)
    job_id = new_id(question.kind)
    document, blob_id = put_aside(session, question.document)
    cost = None if estimate is None else estimate()
    cost_s = UNKNOWN_S if cost is None else cost.cost_s
    created = inserted(
        session,
        Job,
        id=job_id,
        tenant_id=tenant,
        kind=question.kind,
        content_id=question.content_id,
        graph_id=question.graph_id,
        question=document,
        blob_id=blob_id,
        state="queued",
        stage="",
        progress=0.0,
        cancel_requested=False,
        attempts=0,
        rung_at=now(),
        created_at=now(),
        key_id=key_id,
        request_id=request_id,
        trace=trace,
        priority=priority,
        cost_s=cost_s,
        turn_s=turn_s(cost_s, now()),
        model_s=None if cost is None else cost.model_s,
        size=None if cost is None else cost.size,
    )
    if created is not None and active == 0:
        start_among_others(session, tenant)
    job = created or job_for(session, tenant, question.content_id)
    if job is None:
        # The other call's job ended without an answer between our two queries.
        raise Problem("unavailable", "the job just ended; ask again", headers={"Retry-After": "1"})
    return job, created is not None


def raise_priority(session: Session, job: Job, priority: int) -> None:
    """Gives a queued job this priority if its own is lower."""
    if job.state == "queued" and job.priority < priority:
        session.execute(
            update(Job)
            .where(Job.id == job.id, Job.state == "queued", Job.priority < priority)
            .values(priority=priority)
        )
        session.refresh(job)


def failed_lately(session: Session, tenant: str, content_id: str, within_s: float) -> Job | None:
    """Returns the newest job of a question if it failed within the last `within_s`."""
    job = session.scalar(
        select(Job)
        .where(Job.tenant_id == tenant, Job.content_id == content_id)
        .order_by(Job.created_at.desc())
        .limit(1)
    )
    if job is None or job.state != "failed":
        return None
    age = session.scalar(select(now() - Job.ended_at).where(Job.id == job.id))
    return job if age is not None and age < within_s else None


def active_jobs(session: Session, tenant: str) -> int:
    """Returns how many of a tenant's jobs are queued or running."""
    query = select(func.count()).where(Job.tenant_id == tenant, Job.state.in_(ACTIVE))
    return int(session.scalar(query) or 0)


def find_job(session: Session, tenant: str, job_id: str, kind: str | None = None) -> Job:
    """Returns a tenant's job of this kind. Raises a problem `not-found` if there is none."""
    job = session.get(Job, job_id)
    if job is None or job.tenant_id != tenant or kind not in (None, job.kind):
        raise not_found(kind or "job", job_id)
    return job


def look_at(session: Session, ids: Iterable[str]) -> dict[str, Job]:
    """Returns the jobs of these ids, for their watchers."""
    rows = session.scalars(select(Job).where(Job.id.in_(list(ids))))
    return {job.id: job for job in rows}


def cancel_job(session: Session, job: Job) -> None:
    """Ends a queued job, marks a running one for its worker; leaves an ended job as it is."""
    ended = session.execute(
        update(Job)
        .where(Job.id == job.id, Job.state == "queued")
        .values(state="cancelled", cancel_requested=True, ended_at=now())
        .returning(Job.id)
    ).first()
    jobs_ended(session, [] if ended is None else [job.id])
    if ended is None:
        session.execute(
            update(Job)
            .where(Job.id == job.id, Job.state == "running")
            .values(cancel_requested=True)
        )
    session.refresh(job)


def job_document(job: Job, queue: dict[str, Any] | None = None) -> dict[str, Any]:
    """Returns a job as `shardwise.job/1`, without its result; `queue` is its place in the queue."""
    asked = {key: value for key, value in job.question.items() if key not in ("kind", "offers")}
    if "hardware" in asked:
        nodes = asked["hardware"].get("nodes")
        asked["hardware"] = asked["hardware"]["name"]
        if nodes is not None:
            asked["nodes"] = nodes
    return {
        "schema": JOB_SCHEMA,
        "id": job.id,
        "kind": job.kind,
        "state": job.state,
        "stage": job.stage,
        "progress": job.progress,
        "question": asked,
        "content_id": job.content_id,
        "priority": job.priority,
        "queue": queue,
        "attempts": job.attempts,
        "cancel_requested": job.cancel_requested,
        "error": job.error,
        "created_at": iso(job.created_at),
        "started_at": iso(job.started_at),
        "ended_at": iso(job.ended_at),
        "request_id": job.request_id,
        "location": f"/v1/{COLLECTIONS[job.kind]}/{job.id}",
    }


def has_ended(job: Job) -> bool:
    """Returns whether a job will not change any more."""
    return job.state in ENDED
