"""Alembic migrations of the service's schema, for SQLite and PostgreSQL."""
