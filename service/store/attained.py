"""The service that each tenant has received, which orders the tenants.

    virtual_s += seconds of solving / weight

The tenant with the least service is next (stride scheduling; CFS's virtual run time). A job is
charged its estimate when it is claimed, and its actual time when it ends. A tenant that returns
after a pause starts level with the others, so pausing gives no advantage.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from service.store.insert import insert_new
from service.store.tables import ACTIVE, Attained, Job

AHEAD_S = 1e-3
"""Lead of a tenant that comes back, in seconds: it is served next."""

WEIGHTS = (0.01, 100.0)
"""The least and the largest weight of a tenant."""


def weight_of(limits: dict[str, Any]) -> float:
    """Returns the weight that a tenant's limits give it, within bounds."""
    least, most = WEIGHTS
    return min(max(float(limits.get("weight", 1.0)), least), most)


def charge(session: Session, tenant: str, seconds: float, weight: float) -> None:
    """Counts seconds of solving, negative ones to take back what was charged too much."""
    row = session.execute(
        update(Attained)
        .where(Attained.tenant_id == tenant)
        .values(virtual_s=Attained.virtual_s + seconds / weight)
        .returning(Attained.tenant_id)
    ).first()
    if row is None:
        # Its job was created by a release that does not count.
        start_among_others(session, tenant)
        charge(session, tenant, seconds, weight)


def start_among_others(session: Session, tenant: str) -> None:
    """Raises a tenant without jobs to the level of the tenants with jobs; never lowers it.

    If none has jobs, the level is the highest of all tenants.
    """
    others = Attained.tenant_id != tenant
    works = select(Job.id).where(Job.tenant_id == Attained.tenant_id, Job.state.in_(ACTIVE))
    floor = session.scalar(select(func.min(Attained.virtual_s)).where(others, works.exists()))
    if floor is None:
        floor = session.scalar(select(func.max(Attained.virtual_s)).where(others))
    start_s = 0.0 if floor is None else floor - AHEAD_S
    if not insert_new(session, Attained, tenant_id=tenant, virtual_s=start_s):
        session.execute(
            update(Attained)
            .where(Attained.tenant_id == tenant, Attained.virtual_s < start_s)
            .values(virtual_s=start_s)
        )
