"""The points of curves, each with a lease of its own, and attempts that do not count.

It only adds: releases from 0003 on still work. Their workers compute curves whole.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "curve_points",
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("point_id", sa.String(length=71), nullable=False),
        sa.Column("graph_id", sa.String(length=71), nullable=False),
        sa.Column("changed_at", sa.Double(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=True),
        sa.Column("size_bytes", sa.Integer(), server_default="0", nullable=False),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("job_id", sa.String(length=64), nullable=True),
        sa.Column("lease_token", sa.String(length=32), nullable=True),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_curve_points_tenant_id"),
        sa.PrimaryKeyConstraint("tenant_id", "point_id", name="pk_curve_points"),
    )
    op.create_index("ix_curve_points_changed", "curve_points", ["tenant_id", "changed_at"])
    op.create_index("ix_curve_points_graph", "curve_points", ["tenant_id", "graph_id"])
    # Not in a batch: SQLite adds a column with a default without copying the table.
    op.add_column("jobs", sa.Column("forgiven", sa.Integer(), server_default="0", nullable=False))


def downgrade() -> None:
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.drop_column("forgiven")
    op.drop_table("curve_points")
