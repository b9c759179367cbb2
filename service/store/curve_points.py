"""The points of curves: begun under the lease of a job, kept once they are known.

A point belongs to no job. Any job whose curve has it takes what is known, and begins what is
neither known nor being computed: two curves that overlap compute each count once. A point that was
begun `MOST_ATTEMPTS` times and did not become known, or `MOST_LOST` times by workers that ended, is
left out, until its row is forgotten, of curves of which some other point is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, and_, delete, exists, false, or_, select, update
from sqlalchemy.orm import Session

from service.store.database import now
from service.store.insert import insert_new
from service.store.leases import Claim, is_leased
from service.store.quotas import Room
from service.store.tables import CurvePoint, Job
from shardwise.answers.curve_assembly import computing_order
from shardwise.documents.questions import Gpus

MOST_ATTEMPTS = 2
MOST_LOST = 5
"""Attempts that ended with their worker, which says little of the point: hosts are taken away, and
of 64 counts under a kill every 30 s some are hit twice."""

GIVEN_UP_S = 3600.0
"""After this long a point that was left out may be begun again."""

Ids = Mapping[Gpus, str]
"""The ids of points by count or bundle."""


@dataclass(frozen=True)
class Point:
    """A point's stored state besides its content: how often it was started and why that ended."""

    is_known: bool
    attempts: int
    reason: str | None
    is_held: bool

    @property
    def is_worn(self) -> bool:
        """Whether it was begun in vain too often."""
        most = MOST_LOST if self.reason is None else MOST_ATTEMPTS
        return not self.is_known and not self.is_held and self.attempts >= most


@dataclass(frozen=True)
class Next:
    """The point that a job may compute now; without one, whether others are computing some."""

    place: Gpus | None
    others: bool = False


def points_of(session: Session, tenant: str, ids: Ids) -> dict[Gpus, Point]:
    """Returns the stored state of these points."""
    is_known = CurvePoint.content.is_not(None)
    rows = session.execute(
        select(
            CurvePoint.point_id, is_known, CurvePoint.attempts, CurvePoint.reason, _held()
        ).where(CurvePoint.tenant_id == tenant, CurvePoint.point_id.in_(ids.values()))
    )
    found = {row[0]: Point(bool(row[1]), row[2], row[3], bool(row[4])) for row in rows}
    return {place: found[point_id] for place, point_id in ids.items() if point_id in found}


def contents_of(session: Session, tenant: str, ids: Ids) -> dict[Gpus, bytes]:
    """Returns the curves of these points that are known, each of its point alone."""
    rows = session.execute(
        select(CurvePoint.point_id, CurvePoint.content).where(
            CurvePoint.tenant_id == tenant,
            CurvePoint.point_id.in_(ids.values()),
            CurvePoint.content.is_not(None),
        )
    )
    known = {point_id: content for point_id, content in rows if content is not None}
    return {place: known[point_id] for place, point_id in ids.items() if point_id in known}


def reasons_of(points: Mapping[Gpus, Point]) -> dict[Gpus, str]:
    """Returns why points are not known whose computation has ended."""
    lost = f"{MOST_LOST} workers ended while they computed it"
    return {
        place: one.reason or lost
        for place, one in points.items()
        if not one.is_known and (one.reason is not None or one.is_worn)
    }


def can_go_on(points: Mapping[Gpus, Point], ids: Ids) -> bool:
    """Returns whether some point is not known that may still be computed."""
    left_out = _left_out(points)
    return any(
        place not in left_out and not (place in points and points[place].is_known) for place in ids
    )


def _left_out(points: Mapping[Gpus, Point]) -> set[Gpus]:
    """Returns the points that are not begun again; of a curve without a known one none."""
    if not any(one.is_known for one in points.values()):
        return set()
    return {place for place, one in points.items() if one.is_worn}


def begin_next(session: Session, claim: Claim, ids: Ids, tried: set[Gpus]) -> Next:
    """Begins the next point that is neither known nor being computed, for the holder of `claim`.

    `tried` are those that it has tried already. Points that were begun least often come first.
    """
    points = points_of(session, claim.tenant_id, ids)
    order = [place for place in computing_order(ids) if place not in tried]
    order.sort(key=lambda place: points[place].attempts if place in points else 0)
    others, left_out = False, _left_out(points)
    for place in order:
        point = points.get(place)
        if place in left_out or (point is not None and point.is_known):
            continue
        if (point is None or not point.is_held) and _begin(session, claim, ids[place]):
            return Next(place)
        others = True
    return Next(None, others)


def keep(session: Session, claim: Claim, point_id: str, content: bytes) -> bool:
    """Stores a point, once. Returns False if the lease of the job is lost."""
    if not _forgive(session, claim):
        return False
    session.execute(
        update(CurvePoint)
        .where(_mine(claim), CurvePoint.point_id == point_id)
        .values(
            content=content,
            size_bytes=len(content),
            reason=None,
            job_id=None,
            lease_token=None,
            changed_at=now(),
        )
    )
    return True


def leave_out(session: Session, claim: Claim, point_id: str, reason: str) -> None:
    """Ends the computation of a point that has not become known."""
    session.execute(
        update(CurvePoint)
        .where(_mine(claim), CurvePoint.point_id == point_id)
        .values(reason=reason, job_id=None, lease_token=None, changed_at=now())
    )


def hand_back(session: Session, claim: Claim) -> None:
    """Ends the computation of the point that the job holds, as if it had not been begun."""
    session.execute(
        update(CurvePoint)
        .where(_mine(claim), CurvePoint.content.is_(None))
        .values(attempts=CurvePoint.attempts - 1, job_id=None, lease_token=None)
    )


def _begin(session: Session, claim: Claim, point_id: str) -> bool:
    """Returns whether the point is now the job's. Others that begin it at once do not get it."""
    lease = {"job_id": claim.job_id, "lease_token": claim.token}
    new = insert_new(
        session,
        CurvePoint,
        tenant_id=claim.tenant_id,
        point_id=point_id,
        graph_id=claim.graph_id,
        changed_at=now(),
        attempts=1,
        size_bytes=0,
        **lease,
    )
    if new:
        return True
    row = session.execute(
        update(CurvePoint)
        .where(
            CurvePoint.tenant_id == claim.tenant_id,
            CurvePoint.point_id == point_id,
            CurvePoint.content.is_(None),
            ~_held(),
        )
        .values(attempts=CurvePoint.attempts + 1, reason=None, changed_at=now(), **lease)
        .returning(CurvePoint.point_id)
        .execution_options(synchronize_session=False)
    ).first()
    return row is not None


def _forgive(session: Session, claim: Claim) -> bool:
    """Makes this the first attempt of the job that counts. Returns False if its lease is lost."""
    row = session.execute(
        update(Job)
        .where(is_leased(claim))
        .values(forgiven=Job.attempts - 1)
        .returning(Job.id)
        .execution_options(synchronize_session=False)
    ).first()
    return row is not None


def _mine(claim: Claim) -> ColumnElement[bool]:
    return and_(
        CurvePoint.tenant_id == claim.tenant_id,
        CurvePoint.job_id == claim.job_id,
        CurvePoint.lease_token == claim.token,
    )


def _held() -> ColumnElement[bool]:
    """Returns whether a job computes the point, which it does as long as it holds its own lease."""
    return exists().where(
        Job.id == CurvePoint.job_id,
        Job.state == "running",
        Job.lease_token == CurvePoint.lease_token,
        Job.lease_expires_at >= now(),
    )


def due_points(session: Session, room: Room, age_s: float, most: int) -> list[str]:
    """Returns up to `most` points that are to be deleted: those that are older than `age_s` (0: of
    any age), were left out long ago, or are the oldest where answers and points exceed their bound.
    """
    mine = CurvePoint.tenant_id == room.tenant
    left_out = and_(
        CurvePoint.content.is_(None), CurvePoint.changed_at < now() - GIVEN_UP_S, ~_held()
    )
    old = CurvePoint.changed_at < now() - age_s if age_s else false()
    query = select(CurvePoint.point_id).where(mine, or_(left_out, and_(old, ~_held())))
    due = list(session.scalars(query.order_by(CurvePoint.changed_at).limit(most)))
    excess = room.used(session, "max_result_bytes") - room.limit("max_result_bytes")
    if due or excess < 1:
        return due
    sizes = select(CurvePoint.point_id, CurvePoint.size_bytes).where(mine)
    oldest = sizes.where(CurvePoint.size_bytes > 0).order_by(CurvePoint.changed_at)
    for point_id, size in session.execute(oldest.limit(most)):
        due.append(point_id)
        excess -= size
        if excess < 1:
            break
    return due


def drop_points(session: Session, tenant: str, ids: Sequence[str]) -> None:
    """Deletes points."""
    mine = (CurvePoint.tenant_id == tenant, CurvePoint.point_id.in_(ids))
    session.execute(delete(CurvePoint).where(*mine))
