"""Keys with an expiry, their last use and their origin; tenants that are being deleted.

It only adds: releases from 0003 on still work. They accept an expired key until the sweeper of
a worker of this release has revoked it.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def _added() -> list[tuple[str, sa.Column[Any]]]:
    return [
        ("tenants", sa.Column("deleting_at", sa.Double(), nullable=True)),
        ("tenants", sa.Column("deleting_for", sa.String(length=64), nullable=True)),
        ("keys", sa.Column("expires_at", sa.Double(), nullable=True)),
        ("keys", sa.Column("last_used_at", sa.Double(), nullable=True)),
        ("keys", sa.Column("created_by", sa.String(length=32), nullable=True)),
        ("keys", sa.Column("replaces", sa.String(length=32), nullable=True)),
        ("keys", sa.Column("once_hash", sa.String(length=64), nullable=True)),
    ]


def upgrade() -> None:
    for table, column in _added():
        op.add_column(table, column)


def downgrade() -> None:
    # A release without expiry would take these for ever.
    op.execute(
        "UPDATE keys SET revoked_at = expires_at "
        "WHERE expires_at IS NOT NULL AND revoked_at IS NULL"
    )
    # Column by column: SQLite cannot rebuild `tenants`, because other tables refer to it.
    for table, column in reversed(_added()):
        op.drop_column(table, column.name)
