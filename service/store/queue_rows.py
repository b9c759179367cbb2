"""The current content of the queue, as far as the fair order needs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.questions.fair_order import Share, Waiting
from service.store.attained import weight_of
from service.store.database import clock
from service.store.records import living_workers
from service.store.tables import Attained, Job, Tenant


@dataclass(frozen=True)
class Running:
    """A job that is being computed: for how long, and its progress after `progressed_s` of that."""

    id: str
    tenant: str
    cost_s: float
    since_s: float
    progress: float
    progressed_s: float
    kind: str


@dataclass(frozen=True)
class QueueRows:
    """The queue at one moment, `at` by the database's clock; `queued` counts all of it."""

    at: float
    waiting: list[Waiting]
    queued: int
    running: list[Running]
    shares: dict[str, Share]
    limits: dict[str, dict[str, Any]]
    slots: list[int]


def queue_rows(session: Session, most: int, silent_s: float) -> QueueRows:
    """Reads the queue: at most `most` queued jobs, the oldest first."""
    at = clock(session)
    queued = int(session.scalar(select(func.count()).where(Job.state == "queued")) or 0)
    rows = session.execute(
        select(Job.id, Job.tenant_id, Job.priority, Job.cost_s, Job.turn_s)
        .where(Job.state == "queued", Job.cancel_requested.is_(False))
        .order_by(Job.created_at, Job.id)
        .limit(most)
    )
    waiting = [Waiting(*row) for row in rows]
    claimed_at = func.coalesce(Job.claimed_at, Job.started_at, at)
    running = [
        Running(*row)
        for row in session.execute(
            select(
                Job.id,
                Job.tenant_id,
                Job.cost_s,
                at - claimed_at,
                Job.progress,
                func.coalesce(Job.progress_at, at) - claimed_at,
                Job.kind,
            ).where(Job.state == "running")
        )
    ]
    tenants = {job.tenant for job in waiting} | {job.tenant for job in running}
    of_tenants = select(Tenant.id, Tenant.limits).where(Tenant.id.in_(tenants))
    limits = {row.id: row.limits for row in session.execute(of_tenants)}
    shares = {
        tenant: Share(virtual_s, weight_of(limits.get(tenant, {})))
        for tenant, virtual_s in session.execute(
            select(Attained.tenant_id, Attained.virtual_s).where(Attained.tenant_id.in_(tenants))
        )
    }
    slots = [worker.slots for worker in living_workers(session, silent_s)]
    return QueueRows(at, waiting, queued, running, shares, limits, slots)
