"""The deletion of a tenant: marked at once, carried out in small transactions by the sweeper.

A marked tenant has no keys, no tokens and no questions in the queue, and accepts nothing new. Its
launches are stopped and its agents removed; then its rows go, children before parents, and the
tenant's own row last. Each step is a transaction that looks for what is left, so that a sweeper
that crashes leaves the rest to the next sweep, and two sweepers do no harm.
"""

from __future__ import annotations

import logging
from time import monotonic

from sqlalchemy import Table, delete, select, tuple_, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from service.cluster.gangs import LAUNCH_ACTIVE
from service.store.agents import delete_agent
from service.store.database import Database, now
from service.store.gangs import Rules, end, lock_launches
from service.store.launch_tables import Agent, Enrolment, Launch, LogLine, Report
from service.store.metadata import METADATA
from service.store.records import record
from service.store.retention import drop_orphans
from service.store.tables import Job, Key, Tenant
from service.store.tenants import lock_tenant

log = logging.getLogger(__name__)
ROWS_AT_ONCE = 500
LAUNCHES_AT_ONCE = 20
BUDGET_S = 2.0
"""Time limit per sweep, since the sweeper has other duties."""

STOP_S = 60.0
"""Seconds for launches to stop before their agents are removed."""

REACHED_OTHERWISE = {
    "graph_blobs",
    "launch_logs",
    "question_blobs",
    "reports",
    "schema_floor",
    "tenants",
    "workers",
}
"""Tables without a column `tenant_id`: removed with their parents, or not a tenant's."""


def tenant_tables() -> list[Table]:
    """Returns the tables whose rows name their tenant, children before parents."""
    return [table for table in reversed(METADATA.sorted_tables) if "tenant_id" in table.c]


def begin_deletion(session: Session, row: Tenant, audit_tenant: str) -> None:
    """Marks a tenant: its keys and tokens are revoked and its questions are cancelled at once.

    `audit_tenant` is the tenant whose audit will record that the last row is gone. Nothing happens
    to a tenant that is already marked.
    """
    lock_tenant(session, row.id)
    marked = (
        update(Tenant)
        .where(Tenant.id == row.id, Tenant.deleting_at.is_(None))
        .values(deleting_at=now(), deleting_for=audit_tenant)
    )
    session.execute(marked)
    session.refresh(row)
    people = (Key.tenant_id == row.id, Key.agent_id.is_(None), Key.revoked_at.is_(None))
    session.execute(update(Key).where(*people).values(revoked_at=now()))
    session.execute(delete(Enrolment).where(Enrolment.tenant_id == row.id))
    mine = Job.tenant_id == row.id
    session.execute(
        update(Job)
        .where(mine, Job.state == "queued")
        .values(state="cancelled", cancel_requested=True, ended_at=now())
    )
    session.execute(update(Job).where(mine, Job.state == "running").values(cancel_requested=True))


def sweep_deletions(database: Database, rules: Rules, settle_s: float) -> list[str]:
    """Continues deletions for up to `BUDGET_S`. Returns the tenants that are completely deleted.

    `settle_s`: for how long other processes may still believe a key of the tenant.
    """
    with database.read() as session:
        marked = session.scalars(select(Tenant.id).where(Tenant.deleting_at.is_not(None))).all()
    until = monotonic() + BUDGET_S
    gone = []
    for tenant in marked:
        while monotonic() < until:
            try:
                with database.write() as session:
                    more = _step(session, tenant, rules, settle_s)
            except IntegrityError as error:
                # A request under way has added a row: the next sweep deletes it.
                log.info("the tenant %s still has rows: %s", tenant, type(error.orig).__name__)
                break
            if more is None:
                log.info("the tenant %s is deleted", tenant)
                gone.append(tenant)
            if not more:
                break
    return gone


def _step(session: Session, tenant: str, rules: Rules, settle_s: float) -> bool | None:
    """Does one transaction. Returns True if there is more to do, False if it must wait, None if all
    is gone."""
    if _stop_launches(session, tenant):
        return True
    if _stopping(session, tenant):
        return False
    if _remove_agent(session, tenant, rules):
        return True
    if _remove_rows(session, tenant) or drop_orphans(session):
        return True
    settled = (Tenant.id == tenant, Tenant.deleting_at < now() - settle_s)
    deleted = session.execute(delete(Tenant).where(*settled).returning(Tenant.deleting_for)).first()
    if deleted is None:
        return False
    record(
        session,
        tenant=deleted[0] or "",
        key_id=None,
        request_id="",
        action="tenants.deleted",
        target=f"/v1/tenants/{tenant}",
        status=204,
    )
    return None


def _stop_launches(session: Session, tenant: str) -> bool:
    active = (Launch.tenant_id == tenant, Launch.state.in_(LAUNCH_ACTIVE), Launch.ending.is_(None))
    ids = session.scalars(select(Launch.id).where(*active).limit(LAUNCHES_AT_ONCE)).all()
    for launch in lock_launches(session, ids).values():
        end(session, launch, "stopped", "the tenant is deleted")
    return bool(ids)


def _stopping(session: Session, tenant: str) -> bool:
    """Returns whether agents are still stopping ranks and have time left for it."""
    query = (
        select(Launch.id)
        .join(Tenant, Tenant.id == Launch.tenant_id)
        .where(Launch.tenant_id == tenant, Launch.state.in_(LAUNCH_ACTIVE))
        .where(Tenant.deleting_at > now() - STOP_S)
    )
    return session.scalar(query.limit(1)) is not None


def _remove_agent(session: Session, tenant: str, rules: Rules) -> bool:
    agent_id = session.scalar(select(Agent.id).where(Agent.tenant_id == tenant).limit(1))
    if agent_id is None:
        return False
    reports = select(Report.id).where(Report.agent_id == agent_id).limit(ROWS_AT_ONCE)
    ids = session.scalars(reports).all()
    session.execute(delete(Report).where(Report.agent_id == agent_id, Report.id.in_(ids)))
    if len(ids) < ROWS_AT_ONCE:
        delete_agent(session, tenant, agent_id, rules)
    return True


def _remove_rows(session: Session, tenant: str) -> bool:
    """Removes a batch of rows of the first table that has some. Returns whether there were any."""
    if _remove_lines(session, tenant):
        return True
    for table in tenant_tables():
        columns = list(table.primary_key.columns)
        some = select(*columns).where(table.c.tenant_id == tenant).limit(ROWS_AT_ONCE)
        ids = [tuple(row) for row in session.execute(some)]
        if not ids:
            continue
        session.execute(delete(table).where(tuple_(*columns).in_(ids)))
        return True
    return False


def _remove_lines(session: Session, tenant: str) -> bool:
    some = (
        select(LogLine.launch_id, LogLine.number)
        .join(Launch, Launch.id == LogLine.launch_id)
        .where(Launch.tenant_id == tenant)
        .limit(ROWS_AT_ONCE)
    )
    ids = [tuple(row) for row in session.execute(some)]
    if ids:
        session.execute(delete(LogLine).where(tuple_(LogLine.launch_id, LogLine.number).in_(ids)))
    return bool(ids)
