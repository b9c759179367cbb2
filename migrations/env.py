"""Alembic's environment: run by service/store/schema.py, which gives the engine."""

from __future__ import annotations

from alembic import context
from sqlalchemy import text

from service.store.metadata import METADATA

LOCK = 7_306_001
"""PostgreSQL's advisory lock of a migration: two at once run one after the other."""

engine = context.config.attributes["engine"]
with engine.connect() as connection:
    context.configure(
        connection=connection,
        target_metadata=METADATA,
        # SQLite alters a table by copying it.
        render_as_batch=connection.dialect.name == "sqlite",
        compare_type=True,
    )
    with context.begin_transaction():
        if connection.dialect.name == "postgresql":
            connection.execute(text(f"SELECT pg_advisory_xact_lock({LOCK})"))
        context.run_migrations()
    if connection.in_transaction():
        connection.commit()
