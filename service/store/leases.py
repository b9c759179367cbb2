"""Jobs as workers see them: claimed under a lease, kept alive, ended exactly once.

Every UPDATE is guarded by id, state and lease token, and every time is the database's: a worker
that was slow, suspended or cut off finds that the row has another token, and writes nothing.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Select,
    and_,
    case,
    delete,
    func,
    or_,
    select,
    update,
)
from sqlalchemy.orm import Session

from service.base.problems import failure
from service.questions.fair_order import turn_s
from service.store.attained import charge, weight_of
from service.store.database import now
from service.store.insert import insert_new
from service.store.outbox import jobs_ended
from service.store.question_blobs import whole_question
from service.store.tables import Attained, Job, Result, Tenant


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
    cost_s: float
    gave_way: bool = False
    in_vain: int = 0
    """Attempts before this one since the job last got on."""


def _expired() -> ColumnElement[bool]:
    return and_(Job.state == "running", Job.lease_expires_at < now())


def _hopeless(max_attempts: int) -> ColumnElement[bool]:
    """Returns whether a job has killed too many workers since it last got on."""
    return Job.attempts - Job.forgiven >= max_attempts


def claim_next(
    session: Session,
    lease_s: float,
    max_attempts: int,
    *,
    longest_s: float | None = None,
    max_running: int = 0,
) -> Claim | None:
    """Takes the next job by the fair order (questions/fair_order.py). Returns None without one.

    A job whose worker has gone silent comes first: it had its turn. With `longest_s` only jobs
    whose estimate is at most that are taken; `max_running` is how many a tenant may have running
    (0: any number), unless its own limits say otherwise.
    """
    eligible = [~_hopeless(max_attempts), Job.cancel_requested.is_(False)]
    if longest_s is not None:
        eligible.append(Job.cost_s <= longest_s)
    silent = select(Job.id).where(_expired(), *eligible).order_by(Job.lease_expires_at, Job.id)
    job_id = _take(session, lease_s, silent)
    if job_id is None:
        full = _with_most_running(session, max_running)
        if full:
            eligible.append(Job.tenant_id.not_in(full))
        job_id = _take_fairly(session, lease_s, and_(Job.state == "queued", *eligible))
    if job_id is None:
        return None
    job = session.get_one(Job, job_id)
    tenant = session.get_one(Tenant, job.tenant_id)
    claim = Claim(
        job.id,
        str(job.lease_token),
        job.tenant_id,
        job.kind,
        job.content_id,
        job.graph_id,
        whole_question(session, job),
        job.request_id,
        job.trace,
        job.attempts,
        tenant.limits,
        job.cost_s,
        job.gave_way,
        job.attempts - job.forgiven - 1,
    )
    charge(session, claim.tenant_id, claim.cost_s, weight_of(claim.limits))
    return claim


def _take_fairly(session: Session, lease_s: float, queued: ColumnElement[bool]) -> str | None:
    """Takes the first of these jobs by the order of questions/fair_order.py.

    First the tenant, then its highest priority, then the job: each is read from the index
    `ix_jobs_fair`, however many jobs are queued.
    """
    attained_s = func.coalesce(Attained.virtual_s, 0.0)
    some = select(Job.id).where(Job.tenant_id == Tenant.id, queued).exists()
    tenants = select(Tenant.id).outerjoin(Attained, Attained.tenant_id == Tenant.id).where(some)
    tenant = session.scalar(tenants.order_by(attained_s, Tenant.id).limit(1))
    if tenant is None:
        return None
    own = and_(Job.tenant_id == tenant, queued)
    highest = session.scalar(select(func.max(Job.priority)).where(own))
    next_own = select(Job.id).where(own, Job.priority == highest).order_by(Job.turn_s, Job.id)
    if job_id := _take(session, lease_s, next_own):
        return job_id
    # Other workers are taking all of those.
    order = (attained_s, Job.tenant_id, Job.priority.desc(), Job.turn_s, Job.id)
    jobs = select(Job.id).outerjoin(Attained, Attained.tenant_id == Job.tenant_id).where(queued)
    return _take(session, lease_s, jobs.order_by(*order))


def _take(session: Session, lease_s: float, jobs: Select[Any]) -> str | None:
    """Takes the first of these jobs in one statement, skipping those that others are taking."""
    first = jobs.limit(1).with_for_update(skip_locked=True, of=Job).scalar_subquery()
    return session.scalar(
        update(Job)
        .where(Job.id == first)
        .values(
            state="running",
            stage="starting",
            progress=0.0,
            lease_token=secrets.token_hex(16),
            lease_expires_at=now() + lease_s,
            attempts=Job.attempts + 1,
            started_at=func.coalesce(Job.started_at, now()),
            claimed_at=now(),
            progress_at=None,
        )
        .returning(Job.id)
        .execution_options(synchronize_session=False)
    )


def _with_most_running(session: Session, max_running: int) -> list[str]:
    """Returns the tenants that have as many jobs running as they may."""
    count = func.count().label("count")
    running = select(Job.tenant_id, count).where(Job.state == "running").group_by(Job.tenant_id)
    counts = {tenant: int(number) for tenant, number in session.execute(running)}
    limits = session.execute(select(Tenant.id, Tenant.limits).where(Tenant.id.in_(counts)))
    most = {tenant: int(own.get("max_running", max_running)) for tenant, own in limits}
    return [tenant for tenant, number in counts.items() if 0 < most[tenant] <= number]


def first_wait(session: Session, claim: Claim) -> tuple[int, float] | None:
    """Returns the priority of a job that was claimed just now and how long it had waited; None if
    it had been started before."""
    first = and_(Job.id == claim.job_id, Job.started_at > Job.claimed_at - 1e-3)
    row = session.execute(
        select(Job.priority, Job.started_at - Job.created_at).where(first)
    ).first()
    return None if row is None else (int(row[0]), float(row[1] or 0.0))


def any_waiting(session: Session, longest_s: float | None = None) -> bool:
    """Returns whether a worker may find something to claim, of at most this estimate."""
    idle = or_(Job.state == "queued", _expired())
    if longest_s is not None:
        idle = and_(idle, Job.cost_s <= longest_s)
    return session.scalar(select(Job.id).where(idle).limit(1)) is not None


def short_waits(session: Session, longest_s: float, max_running: int) -> bool:
    """Returns whether a job of at most this estimate waits for nothing but a slot."""
    short = [Job.state == "queued", Job.cost_s <= longest_s, Job.cancel_requested.is_(False)]
    if full := _with_most_running(session, max_running):
        short.append(Job.tenant_id.not_in(full))
    return session.scalar(select(Job.id).where(*short).limit(1)) is not None


def settle(session: Session, claim: Claim, took_s: float, charged_s: float) -> None:
    """Records the time of a solve, and charges its tenant with that instead of the estimate."""
    session.execute(update(Job).where(Job.id == claim.job_id).values(took_s=took_s))
    charge(session, claim.tenant_id, took_s - charged_s, weight_of(claim.limits))


def close_hopeless(
    session: Session, max_attempts: int, job_id: str | None = None
) -> tuple[list[str], list[str]]:
    """Ends jobs without a worker: returns those that were cancelled, and those that killed too
    many workers."""
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
        .where(idle, _hopeless(max_attempts))
        .values(state="failed", error=lost, **free)
        .returning(Job.id)
    ).all()
    jobs_ended(session, [*cancelled, *failed])
    return list(cancelled), list(failed)


def is_leased(claim: Claim) -> ColumnElement[bool]:
    """Returns whether the job's row is this claim's."""
    return and_(Job.id == claim.job_id, Job.state == "running", Job.lease_token == claim.token)


def keep_alive(
    session: Session, claim: Claim, lease_s: float, stage: str, progress: float
) -> bool | None:
    """Writes progress and renews the lease.

    Returns whether a cancel was requested, None if the lease is lost.
    """
    row = session.execute(
        update(Job)
        .where(is_leased(claim))
        .values(
            stage=stage[:200],
            progress=progress,
            progress_at=case((Job.progress == progress, Job.progress_at), else_=now()),
            lease_expires_at=now() + lease_s,
        )
        .returning(Job.cancel_requested)
    ).first()
    return None if row is None else bool(row[0])


def finish(
    session: Session, claim: Claim, content: bytes, etag: str, answer_id: str | None
) -> bool:
    """Records the answer and ends the job, both or neither. Returns False if the lease is lost.

    A cancel before the answer takes precedence: the same question asked again has its own job.
    """
    unwanted = select(Job.cancel_requested).where(is_leased(claim)).with_for_update()
    if session.scalar(unwanted):
        return cancelled(session, claim)
    if not _end(session, claim, "done", stage="", progress=1.0):
        return False
    # A curve that goes on after a limit replaces the answer that lacked some counts.
    replaced = (Result.tenant_id == claim.tenant_id, Result.content_id == claim.content_id)
    session.execute(delete(Result).where(*replaced))
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
        size_bytes=len(content),
    )
    return True


def fail(session: Session, claim: Claim, error: dict[str, Any]) -> bool:
    """Ends the job with the error. Returns False if the lease is lost."""
    return _end(session, claim, "failed", error=error)


def cancelled(session: Session, claim: Claim) -> bool:
    """Ends the job as cancelled. Returns False if the lease is lost."""
    return _end(session, claim, "cancelled")


def _end(session: Session, claim: Claim, state: str, **values: Any) -> bool:
    row = session.execute(
        update(Job)
        .where(is_leased(claim))
        .values(state=state, lease_token=None, lease_expires_at=None, ended_at=now(), **values)
        .returning(Job.id)
    ).first()
    jobs_ended(session, [] if row is None else [claim.job_id])
    return row is not None


def give_way(session: Session, claim: Claim, cost_s: float) -> bool:
    """Queues a job again that has left a slot for short jobs, with the estimate that it has now.

    Returns False if the lease is lost.
    """
    due_s = turn_s(cost_s, Job.created_at.expression)
    return give_back(session, claim, counts=False, gave_way=True, cost_s=cost_s, turn_s=due_s)


def give_back(session: Session, claim: Claim, *, counts: bool, **values: Any) -> bool:
    """Queues the job again, with these values. Returns False if the lease is lost.

    `counts`: the job killed its worker, so the attempt is used up. `rung_at` 0 lets the next sweep
    ring at once.
    """
    row = session.execute(
        update(Job)
        .where(is_leased(claim))
        .values(
            state="queued",
            stage="",
            progress=0.0,
            lease_token=None,
            lease_expires_at=None,
            rung_at=0.0,
            attempts=Job.attempts if counts else Job.attempts - 1,
            **values,
        )
        .returning(Job.id)
    ).first()
    return row is not None


def to_ring(session: Session, ring_again_s: float, most: int) -> list[str]:
    """Returns jobs without a worker that were last rung for some time ago; marks them rung."""
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
    """Queues every running job: for the embedded start, where no worker can be alive."""
    return list(
        session.scalars(
            update(Job)
            .where(Job.state == "running")
            .values(state="queued", lease_token=None, lease_expires_at=None, rung_at=0.0)
            .returning(Job.id)
        )
    )


def idle(session: Session) -> int:
    """Returns how many unfinished jobs have no worker."""
    query = select(func.count()).where(or_(Job.state == "queued", _expired()))
    return int(session.scalar(query) or 0)
