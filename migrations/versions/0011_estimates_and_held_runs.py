"""Sizes of jobs, from which estimates follow; when a job made its progress, and if it gave way.
Runs that are held until an administrator accepts them.

It only adds: releases from 0003 on still work.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_TOOK = sa.text("took_s IS NOT NULL")
_NEW = ("size", "claimed_at", "progress_at")


def upgrade() -> None:
    # Not in a batch: SQLite adds these columns without copying the table.
    op.add_column("jobs", sa.Column("size", sa.JSON(none_as_null=True), nullable=True))
    op.add_column("jobs", sa.Column("claimed_at", sa.Double(), nullable=True))
    op.add_column("jobs", sa.Column("progress_at", sa.Double(), nullable=True))
    op.add_column(
        "jobs", sa.Column("gave_way", sa.Boolean(), server_default=sa.false(), nullable=False)
    )
    _index("tenant_id", "kind", "ended_at")
    op.add_column("runs", sa.Column("held", sa.Text(), nullable=True))
    op.add_column("runs", sa.Column("judged", sa.String(length=16), nullable=True))


def downgrade() -> None:
    _index("kind", "ended_at")
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        for name in (*_NEW, "gave_way"):
            batch_op.drop_column(name)
    with op.batch_alter_table("runs", schema=None) as batch_op:
        batch_op.drop_column("judged")
        batch_op.drop_column("held")


def _index(*columns: str) -> None:
    op.drop_index("ix_jobs_took", table_name="jobs")
    op.create_index("ix_jobs_took", "jobs", columns, sqlite_where=_TOOK, postgresql_where=_TOOK)
