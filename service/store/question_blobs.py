"""Questions refer to their large parts: a profile or a table of offers is stored once.

A question in a job's row has `{"blob": ID}` where the part was; of a profile also the name and the
nodes, which lists show. Workers of releases before schema 0006 only read whole questions, so
questions are stored whole while one of them lives.
"""

from __future__ import annotations

import hashlib
import zlib
from typing import Any

import msgspec
from sqlalchemy import select
from sqlalchemy.orm import Session

from service.base.problems import not_found
from service.store.blobs import keep_blob
from service.store.database import now
from service.store.summaries import clipped
from service.store.tables import Job, QuestionBlob, WorkerRow

MAX_INLINE_BYTES = 16 * 1024
"""A part up to this size stays in the question."""

PARTS = ("hardware", "offers")
_SILENT_S = 3600.0
"""Seconds without a sign of life after which a worker does not count as alive."""


def put_aside(session: Session, question: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
    """Returns the question as its row stores it, and the id of the blob that it refers to."""
    for name in PARTS:
        part = question.get(name)
        if part is None:
            continue
        content = msgspec.json.encode(part, order="sorted")
        if len(content) <= MAX_INLINE_BYTES or not _all_read_references(session):
            return question, None
        blob_id = f"sha256:{hashlib.sha256(content).hexdigest()}"
        keep_blob(session, QuestionBlob, blob_id, content)
        return {**question, name: {**_shown(part), "blob": blob_id}}, blob_id
    return question, None


def _shown(part: Any) -> dict[str, Any]:
    """Returns the members of a profile that lists show."""
    if not isinstance(part, dict):
        return {}
    nodes = {"nodes": part["nodes"]} if "nodes" in part else {}
    return {"name": clipped(part["name"]), **nodes}


def whole_question(session: Session, job: Job) -> dict[str, Any]:
    """Returns the job's question with the part that it refers to.

    Raises a problem `not-found` where the job has been deleted meanwhile, and the part with it.
    """
    if job.blob_id is None:
        return job.question
    content = session.scalar(select(QuestionBlob.content).where(QuestionBlob.id == job.blob_id))
    if content is None:
        raise not_found("job", job.id)
    name = next(name for name in PARTS if name in job.question)
    return {**job.question, name: msgspec.json.decode(zlib.decompress(content))}


def _all_read_references(session: Session) -> bool:
    older = select(WorkerRow.id).where(
        WorkerRow.by_reference.is_(False), WorkerRow.seen_at > now() - _SILENT_S
    )
    return session.scalar(older.limit(1)) is None
