"""Content that is stored once under its id, no matter how many rows refer to it.

A blob that no row refers to is deleted (by retention, or with a tenant's graph). It is locked
first, and a transaction that is about to refer to it holds a lock until it commits.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from sqlalchemy import ColumnElement, delete, select
from sqlalchemy.orm import Session

from service.base.problems import Problem
from service.store.insert import insert_new
from service.store.tables import GraphBlob, QuestionBlob

_TRIES = 5


def keep_blob(
    session: Session, table: type[GraphBlob] | type[QuestionBlob], blob_id: str, content: bytes
) -> None:
    """Stores content, compressed, unless it is there; it stays until the transaction ends.

    Raises a problem `unavailable` if it keeps being deleted in the meantime.
    """
    lock = select(table.id).where(table.id == blob_id).with_for_update(read=True, key_share=True)
    if session.scalar(lock) is not None:
        return
    packed = zlib.compress(content, 6)
    # It may be deleted between the two statements; then it is stored again.
    for _ in range(_TRIES):
        new = insert_new(session, table, id=blob_id, content=packed)
        if new or session.scalar(lock) is not None:
            return
    raise Problem("unavailable", "stored and deleted at once", headers={"Retry-After": "1"})


def drop_blobs(
    session: Session,
    table: type[GraphBlob] | type[QuestionBlob],
    ids: Sequence[str],
    needed: ColumnElement[bool],
) -> None:
    """Deletes these blobs unless they are needed, which is checked once they are locked."""
    mine = table.id.in_(ids)
    session.execute(select(table.id).where(mine).order_by(table.id).with_for_update())
    session.execute(delete(table).where(mine, ~needed))
