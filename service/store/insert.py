"""Inserts of rows that may exist: one statement, so that two at once cannot both succeed."""

from __future__ import annotations

from typing import Any

from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from service.store.tables import Base


def insert_new(session: Session, table: type[Base], **values: Any) -> bool:
    """Returns whether the row was inserted; False if its key exists already."""
    kind = postgresql if session.get_bind().dialect.name == "postgresql" else sqlite
    statement = kind.insert(table).values(**values).on_conflict_do_nothing()
    # RETURNING, because SQLite counts no rows for an insert through the ORM.
    return session.execute(statement.returning(*table.__table__.primary_key)).first() is not None


def insert_adding(session: Session, table: type[Base], column: Any, **values: Any) -> int:
    """Inserts a row, or adds to `column` of the one with its key. Returns the new value."""
    kind = postgresql if session.get_bind().dialect.name == "postgresql" else sqlite
    statement = kind.insert(table).values(**values)
    added = statement.on_conflict_do_update(
        index_elements=list(table.__table__.primary_key),
        set_={column.key: column + statement.excluded[column.key]},
    )
    return int(session.execute(added.returning(column)).scalar_one())
