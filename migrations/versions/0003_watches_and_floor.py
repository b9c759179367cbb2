"""Watched curves, and the floor: the revision of the oldest release that works on the schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "watches",
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=40), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("content_id", sa.String(length=71), nullable=False),
        sa.Column("graph_id", sa.String(length=71), nullable=False),
        sa.Column("hardware", sa.String(length=100), nullable=False),
        sa.Column("max_gpus", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id", "graph_id"],
            ["graphs.tenant_id", "graphs.graph_id"],
            name="fk_watches_tenant_id_graphs",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("tenant_id", "name", name="pk_watches"),
    )
    floor = op.create_table(
        "schema_floor",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("revision", sa.String(length=32), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_schema_floor"),
    )
    op.bulk_insert(floor, [{"id": 1, "revision": revision}])


def downgrade() -> None:
    op.drop_table("schema_floor")
    op.drop_table("watches")
