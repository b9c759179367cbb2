"""Answers as the bytes that are sent."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.store.tables import Result


@dataclass(frozen=True)
class Stored:
    """An answer, its entity tag, and its media type."""

    content: bytes
    etag: str
    media_type: str = "application/json"


def etag_of(content: bytes) -> str:
    """Returns the entity tag of these bytes."""
    return f'"{hashlib.sha256(content).hexdigest()[:32]}"'


def result_of(session: Session, tenant: str, content_id: str) -> Stored | None:
    """Returns the tenant's answer to a question; None if there is none."""
    row = session.execute(
        select(Result.content, Result.etag).where(
            Result.tenant_id == tenant, Result.content_id == content_id
        )
    ).first()
    return None if row is None else Stored(row[0], row[1])


def content_of_answer(session: Session, tenant: str, answer_id: str) -> str | None:
    """Returns the content id of the question whose answer has this id (a plan's)."""
    return session.scalar(
        select(Result.content_id)
        .where(Result.tenant_id == tenant, Result.answer_id == answer_id)
        .order_by(Result.created_at)
        .limit(1)
    )
