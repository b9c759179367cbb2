"""Inserts of rows that may exist: one statement, so that two at once cannot both succeed."""

from __future__ import annotations

from typing import Any, TypeVar

from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from service.store.tables import Base

Row = TypeVar("Row", bound=Base)


def insert_new(session: Session, table: type[Base], **values: Any) -> bool:
    """Returns whether the row was inserted; False if its key exists already."""
    # RETURNING, because SQLite counts no rows for an insert through the ORM.
    statement = _insert(session, table, values).returning(*table.__table__.primary_key)
    return session.execute(statement).first() is not None


def inserted(session: Session, table: type[Row], **values: Any) -> Row | None:
    """Returns the row as it was inserted; None if its key exists already."""
    row: Row | None = session.scalar(_insert(session, table, values).returning(table))
    return row


def _insert(session: Session, table: type[Base], values: dict[str, Any]) -> Any:
    kind = postgresql if session.get_bind().dialect.name == "postgresql" else sqlite
    return kind.insert(table).values(**values).on_conflict_do_nothing()


def insert_adding(session: Session, table: type[Base], column: Any, **values: Any) -> int:
    """Inserts a row, or adds to `column` of the one with its key. Returns the new value."""
    kind = postgresql if session.get_bind().dialect.name == "postgresql" else sqlite
    statement = kind.insert(table).values(**values)
    added = statement.on_conflict_do_update(
        index_elements=list(table.__table__.primary_key),
        set_={column.key: column + statement.excluded[column.key]},
    )
    return int(session.execute(added.returning(column)).scalar_one())
