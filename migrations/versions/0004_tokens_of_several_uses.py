"""Enrolment tokens of several uses, agents know their token; the newest runs of all tenants.

It only adds: releases from 0003 on still work.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("enrolments", schema=None) as batch_op:
        batch_op.add_column(sa.Column("uses", sa.Integer(), server_default="1", nullable=False))
        batch_op.add_column(sa.Column("used", sa.Integer(), server_default="0", nullable=False))
    op.execute("UPDATE enrolments SET used = 1 WHERE used_at IS NOT NULL")
    with op.batch_alter_table("agents", schema=None) as batch_op:
        batch_op.add_column(sa.Column("token_hash", sa.String(length=64), nullable=True))
        batch_op.add_column(sa.Column("once_hash", sa.String(length=64), nullable=True))
        batch_op.create_index("ix_agents_token", ["token_hash", "once_hash"], unique=False)
    with op.batch_alter_table("runs", schema=None) as batch_op:
        batch_op.create_index("ix_runs_created_at", ["created_at"], unique=False)


def downgrade() -> None:
    with op.batch_alter_table("runs", schema=None) as batch_op:
        batch_op.drop_index("ix_runs_created_at")
    with op.batch_alter_table("agents", schema=None) as batch_op:
        batch_op.drop_index("ix_agents_token")
        batch_op.drop_column("once_hash")
        batch_op.drop_column("token_hash")
    # Without a count a token that was used at all is used up.
    op.execute("UPDATE enrolments SET used_at = expires_at WHERE used > 0 AND used_at IS NULL")
    with op.batch_alter_table("enrolments", schema=None) as batch_op:
        batch_op.drop_column("used")
        batch_op.drop_column("uses")
