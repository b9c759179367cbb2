"""Quotas: what a tenant has stored, and whether it may store more.

Each is a setting that can be overridden per tenant. Usage is counted under the tenant's row lock,
so that concurrent calls do not exceed a quota together. Answers and ended jobs are never refused:
retention throws away the oldest (retention.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, case, func, select
from sqlalchemy.orm import Session

from service.base.problems import Problem
from service.base.settings import Settings
from service.cluster.gangs import LAUNCH_ACTIVE
from service.store.database import now, today
from service.store.insert import insert_adding
from service.store.launch_tables import Agent, Launch, Run
from service.store.tables import (
    ACTIVE,
    AcceptedBytes,
    CurvePoint,
    HardwareProfile,
    Job,
    OwnedGraph,
    Result,
    Tenant,
    Watch,
)
from service.store.tenants import lock_tenant

DAY_S = 86400.0


@dataclass(frozen=True)
class Room:
    """A tenant's storage limits, which override the settings."""

    tenant: str
    settings: Settings
    own: Mapping[str, Any]

    def limit(self, name: str) -> int:
        """Returns the bound of a quota."""
        return int(self.own.get(name, getattr(self.settings, name)))

    def require(self, session: Session, **more: int) -> None:
        """Requires room for `more` of each quota. Raises a problem `quota` if one is exceeded.

        The tenant's row is locked until the transaction ends.
        """
        lock_tenant(session, self.tenant)
        asked = {name: count for name, count in more.items() if count > 0}
        sums = [QUOTAS[name].used(self).scalar_subquery() for name in asked]
        used = session.execute(select(*sums)).one() if sums else ()
        for (name, count), before in zip(asked.items(), used, strict=True):
            if int(before or 0) + count > self.limit(name):
                raise full(name, int(before or 0), self.limit(name), count)

    def used(self, session: Session, name: str) -> int:
        """Returns how much of a quota is used."""
        return int(session.scalar(QUOTAS[name].used(self)) or 0)


def full(name: str, used: int, limit: int, more: int) -> Problem:
    """Returns the problem of a quota that is exceeded."""
    quota = QUOTAS[name]
    return Problem(
        "quota",
        f"{used} of {limit} {quota.what} are used, {more} more were to be stored: {quota.free}",
        quota=name,
        used=used,
        limit=limit,
    )


@dataclass(frozen=True)
class Quota:
    """A counted resource, the query that counts it for a tenant, and how to reduce it."""

    what: str
    free: str
    used: Callable[[Room], Any]


def _count(table: Any, *also: ColumnElement[bool]) -> Callable[[Room], Any]:
    return lambda room: select(func.count()).where(table.tenant_id == room.tenant, *also)


def _sum(table: Any) -> Callable[[Room], Any]:
    return lambda room: select(func.sum(table.size_bytes)).where(table.tenant_id == room.tenant)


def _answer_bytes(room: Room) -> Any:
    """Returns the bytes of answers and of the points that curves are made of."""
    answers, points = (
        func.coalesce(_sum(table)(room).scalar_subquery(), 0) for table in (Result, CurvePoint)
    )
    return select(answers + points)


def _launch_bytes(room: Room) -> Any:
    """Returns the bytes of requests, plans and the output that is still kept."""
    kept = (Launch.ended_at.is_(None)) | (Launch.ended_at > now() - room.settings.log_s)
    most = room.settings.max_log_bytes
    logs = case((Launch.log_bytes > most, most), else_=Launch.log_bytes)
    size = Launch.size_bytes + case((kept, logs), else_=0)
    return select(func.sum(size)).where(Launch.tenant_id == room.tenant)


def _accepted(room: Room) -> Any:
    mine = (AcceptedBytes.tenant_id == room.tenant, AcceptedBytes.day == today())
    return select(AcceptedBytes.size_bytes).where(*mine)


_FORGET = "forget ended launches (DELETE /v1/launches/{id}?forget=true)"
_WAIT = "wait until some have ended, or cancel them"

QUOTAS: Mapping[str, Quota] = {
    "max_graphs": Quota("graphs", "delete some", _count(OwnedGraph)),
    "max_stored_bytes": Quota("bytes of graphs", "delete some graphs", _sum(OwnedGraph)),
    "max_profiles": Quota("hardware profiles", "delete some", _count(HardwareProfile)),
    "max_profile_bytes": Quota(
        "bytes of hardware profiles", "delete some profiles", _sum(HardwareProfile)
    ),
    "max_queued": Quota("queued and running jobs", _WAIT, _count(Job, Job.state.in_(ACTIVE))),
    "max_stored_jobs": Quota("jobs", "the oldest ended ones go by themselves", _count(Job)),
    "max_result_bytes": Quota("bytes of answers", "the oldest go by themselves", _answer_bytes),
    "max_watched": Quota("watched curves", "delete a watch", _count(Watch)),
    "max_agents": Quota("agents", "delete some", _count(Agent)),
    "max_launches": Quota(
        "queued and running launches", _WAIT, _count(Launch, Launch.state.in_(LAUNCH_ACTIVE))
    ),
    "max_stored_launches": Quota("stored launches", _FORGET, _count(Launch)),
    "max_launch_bytes": Quota("bytes of launches", _FORGET, _launch_bytes),
    "max_runs": Quota("measured runs", _FORGET, _count(Run)),
    "max_run_bytes": Quota("bytes of measured runs", _FORGET, _sum(Run)),
    "max_bytes_per_day": Quota("bytes of this day", "go on tomorrow (UTC)", _accepted),
}
"""The quotas by the name of their setting."""


def accept_bytes(session: Session, room: Room, size: int) -> None:
    """Adds a body of `size` bytes to the tenant's day. Raises a problem `quota` beyond its bound.

    Must be the last statement of a transaction: the day's row is locked until its end.
    """
    if size < 1:
        return
    used = count_bytes(session, room.tenant, size)
    limit = room.limit("max_bytes_per_day")
    if used > limit:
        raise full("max_bytes_per_day", used - size, limit, size)


def day_is_full(session: Session, room: Room, size: int) -> str | None:
    """Returns why a body of `size` bytes exceeds the day's bound; None if it does not."""
    used, limit = room.used(session, "max_bytes_per_day"), room.limit("max_bytes_per_day")
    if used + size <= limit:
        return None
    return full("max_bytes_per_day", used, limit, size).detail


def count_bytes(session: Session, tenant: str, size: int) -> int:
    """Adds bytes to the tenant's day. Returns the new sum."""
    return insert_adding(
        session,
        AcceptedBytes,
        AcceptedBytes.size_bytes,
        tenant_id=tenant,
        day=today(),
        size_bytes=size,
    )


def room_of(session: Session, settings: Settings, tenant: str) -> Room:
    """Returns the room of a tenant by the limits in its row."""
    limits = session.scalar(select(Tenant.limits).where(Tenant.id == tenant))
    return Room(tenant, settings, limits or {})
