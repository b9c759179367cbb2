"""Tenants as an operator sees them: listed, found, with their usage and limits."""

from __future__ import annotations

from typing import Any, get_args

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from service.base.problems import not_found
from service.cluster.gangs import LAUNCH_ACTIVE
from service.store.ids import iso
from service.store.key_admin import count_keys
from service.store.launch_tables import Agent, Launch, Run
from service.store.pages import Place, after
from service.store.tables import ACTIVE, HardwareProfile, Job, OwnedGraph, Result, Tenant, Watch
from shardwise.documents.administration import TenantState

TENANT_SCHEMA = "shardwise.tenant/1"
TENANT_STATES = get_args(TenantState)


def list_tenants(session: Session, place: Place | None, limit: int) -> list[Tenant]:
    """Returns all tenants, newest first."""
    return list(session.scalars(after(select(Tenant), Tenant.created_at, Tenant.id, place, limit)))


def find_tenant(session: Session, tenant: str) -> Tenant:
    """Returns a tenant. Raises a problem `not-found` for an unknown one."""
    row = session.get(Tenant, tenant, populate_existing=True)
    if row is None:
        raise not_found("tenant", tenant[:80])
    return row


def usage_of(session: Session, tenant: str) -> dict[str, int]:
    """Returns how much a tenant has of everything, and the bytes of its graphs."""
    sizes = func.coalesce(func.sum(OwnedGraph.size_bytes), 0)
    mine = select(func.count(), sizes).where(OwnedGraph.tenant_id == tenant)
    graphs, stored_bytes = session.execute(mine).one()
    counted = {
        "hardware": (HardwareProfile.tenant_id == tenant,),
        "jobs": (Job.tenant_id == tenant,),
        "jobs_active": (Job.tenant_id == tenant, Job.state.in_(ACTIVE)),
        "results": (Result.tenant_id == tenant,),
        "watches": (Watch.tenant_id == tenant,),
        "agents": (Agent.tenant_id == tenant,),
        "launches": (Launch.tenant_id == tenant,),
        "launches_active": (Launch.tenant_id == tenant, Launch.state.in_(LAUNCH_ACTIVE)),
        "runs": (Run.tenant_id == tenant,),
    }
    return {
        "keys": count_keys(session, tenant),
        "graphs": graphs,
        "stored_bytes": int(stored_bytes),
        **{name: _count(session, *which) for name, which in counted.items()},
    }


def tenant_document(row: Tenant) -> dict[str, Any]:
    """Returns a tenant as `shardwise.tenant/1`, with only its own limits."""
    return {
        "schema": TENANT_SCHEMA,
        "id": row.id,
        "state": "active" if row.deleting_at is None else "deleting",
        "created_at": iso(row.created_at),
        "deleting_at": iso(row.deleting_at),
        "limits": row.limits,
    }


def _count(session: Session, *which: ColumnElement[bool]) -> int:
    return int(session.scalar(select(func.count()).where(*which)) or 0)
