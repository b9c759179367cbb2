"""Jobs have a priority and an estimated cost; tenants the service that they have had.

It only adds: releases from 0003 on still work.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_TOOK = sa.text("took_s IS NOT NULL")


def upgrade() -> None:
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.add_column(sa.Column("priority", sa.Integer(), server_default="0", nullable=False))
        batch_op.add_column(sa.Column("cost_s", sa.Double(), server_default="5", nullable=False))
        batch_op.add_column(sa.Column("turn_s", sa.Double(), server_default="0", nullable=False))
        batch_op.add_column(sa.Column("model_s", sa.Double(), nullable=True))
        batch_op.add_column(sa.Column("took_s", sa.Double(), nullable=True))
        batch_op.create_index("ix_jobs_fair", ["state", "tenant_id", "priority", "turn_s", "id"])
        batch_op.create_index(
            "ix_jobs_took", ["kind", "ended_at"], sqlite_where=_TOOK, postgresql_where=_TOOK
        )
    op.create_table(
        "attained",
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("virtual_s", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id"],
            ["tenants.id"],
            name=op.f("fk_attained_tenant_id_tenants"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("tenant_id", name=op.f("pk_attained")),
    )


def downgrade() -> None:
    op.drop_table("attained")
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.drop_index("ix_jobs_took", sqlite_where=_TOOK, postgresql_where=_TOOK)
        batch_op.drop_index("ix_jobs_fair")
        for name in ("took_s", "model_s", "turn_s", "cost_s", "priority"):
            batch_op.drop_column(name)
