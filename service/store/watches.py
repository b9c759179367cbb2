"""Watched curves: those whose points are metrics, by a name that the tenant chose."""

from __future__ import annotations

from typing import Any

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from service.base.problems import not_found
from service.store.database import now
from service.store.insert import insert_new
from service.store.tables import Watch


def add_watch(session: Session, tenant: str, name: str, **values: Any) -> bool:
    """Stores a watch. Returns False if the tenant has one of that name."""
    return insert_new(session, Watch, tenant_id=tenant, name=name, created_at=now(), **values)


def find_watch(session: Session, tenant: str, name: str) -> Watch:
    """Returns the tenant's watch. Raises a problem `not-found` if it has none of that name."""
    row = session.get(Watch, (tenant, name))
    if row is None:
        raise not_found("watch", name)
    return row


def watches_of(session: Session, tenant: str) -> list[Watch]:
    """Returns all of a tenant's watches (few: `max_watched`), by name."""
    query = select(Watch).where(Watch.tenant_id == tenant).order_by(Watch.name)
    return list(session.scalars(query))


def count_watches(session: Session, tenant: str) -> int:
    """Returns how many watches a tenant has."""
    return session.scalar(select(func.count()).where(Watch.tenant_id == tenant)) or 0


def delete_watch(session: Session, tenant: str, name: str) -> None:
    """Deletes a watch; its curve stays an answer like any other."""
    gone = session.scalar(
        delete(Watch).where(Watch.tenant_id == tenant, Watch.name == name).returning(Watch.name)
    )
    if gone is None:
        raise not_found("watch", name)
