"""Curves as answers that grow: what is known so far, and when a question goes on.

A curve that met a limit is an answer with `missing` counts, and its job is done. Asked again, the
question goes on with what is missing in a job of its own, unless all of that was left out. The
former job then keeps its answer under an id of its own, and the question keeps it until the new job
has a better one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from service.questions.curves import assembled_curve, only_places, point_ids
from service.questions.question import Question
from service.store.curve_points import can_go_on, contents_of, points_of, reasons_of
from service.store.insert import insert_new
from service.store.question_blobs import whole_question
from service.store.results import Stored, result_of
from service.store.tables import ACTIVE, Job, Result
from shardwise import validation
from shardwise.documents.curve import MissingPoint

CURVE = "curve"


class _Missing(msgspec.Struct):
    """The missing counts of a curve; its other members are skipped."""

    missing: list[MissingPoint] = []


def is_whole(content: bytes) -> bool:
    """Returns whether a curve has all that was asked of it."""
    return not validation.decode(content, _Missing).missing


def goes_on(session: Session, tenant: str, question: Mapping[str, Any], content: bytes) -> bool:
    """Returns whether a curve lacks counts that may still be computed."""
    if is_whole(content):
        return False
    ids = point_ids(question)
    return can_go_on(points_of(session, tenant, ids), ids)


def settled_answer(session: Session, tenant: str, question: Question) -> Stored | None:
    """Returns the answer to a question, if it has one; None of a curve that goes on."""
    stored = result_of(session, tenant, question.content_id)
    if stored is None or question.kind != CURVE:
        return stored
    return None if goes_on(session, tenant, question.document, stored.content) else stored


def may_go_on(session: Session, job: Job, question: Question) -> bool:
    """Returns whether the question of a job that is done goes on."""
    if job.kind != CURVE or job.state != "done":
        return False
    stored = result_of(session, job.tenant_id, job.content_id)
    return stored is not None and goes_on(session, job.tenant_id, question.document, stored.content)


def set_aside(session: Session, job: Job) -> None:
    """Gives a job that is done an id of its own for what it has computed, so that its question can
    have another job. Of two calls at once one does."""
    digest = hashlib.sha256(f"{job.content_id}/{job.id}".encode()).hexdigest()
    own = f"sha256:{digest}"
    moved = session.execute(
        update(Job)
        .where(Job.id == job.id, Job.content_id == job.content_id)
        .values(content_id=own)
        .returning(Job.id)
        .execution_options(synchronize_session=False)
    ).first()
    if moved is None:
        return
    former = session.execute(
        select(Result).where(Result.tenant_id == job.tenant_id, Result.content_id == job.content_id)
    ).scalar_one_or_none()
    session.expire(job)
    if former is not None:
        columns = Result.__table__.columns.keys()
        values = {name: getattr(former, name) for name in columns}
        insert_new(session, Result, **{**values, "content_id": own})


def left_of(session: Session, tenant: str, question: Question) -> Question:
    """Returns a curve's question without the counts that are known, by which its cost is estimated;
    another question as it is."""
    if question.kind != CURVE:
        return question
    ids = point_ids(question.document)
    points = points_of(session, tenant, ids)
    left = [place for place in ids if place not in points or not points[place].is_known]
    if len(left) == len(ids):
        return question
    places = left or list(ids)[:1]
    return replace(question, document=only_places(question.document, places))


def so_far(session: Session, job: Job) -> bytes | None:
    """Returns the curve of a job that is queued or running as far as it is known; None of another
    job, and if no count is known."""
    if job.kind != CURVE or job.state not in ACTIVE:
        return None
    question = whole_question(session, job)
    ids = point_ids(question)
    contents = contents_of(session, job.tenant_id, ids)
    if not contents:
        return None
    reasons = reasons_of(points_of(session, job.tenant_id, ids))
    return msgspec.json.encode(assembled_curve(question, contents, reasons))
