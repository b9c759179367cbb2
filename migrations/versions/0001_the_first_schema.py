"""The first schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:

    op.create_table(
        "audit",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("key_id", sa.String(length=32), nullable=True),
        sa.Column("request_id", sa.String(length=64), nullable=False),
        sa.Column("action", sa.String(length=100), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_audit"),
    )
    with op.batch_alter_table("audit", schema=None) as batch_op:
        batch_op.create_index("ix_audit_at", ["at"], unique=False)
        batch_op.create_index("ix_audit_listed", ["tenant_id", "at", "id"], unique=False)

    op.create_table(
        "graph_blobs",
        sa.Column("id", sa.String(length=71), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_graph_blobs"),
    )
    op.create_table(
        "tenants",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("limits", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_tenants"),
    )
    op.create_table(
        "workers",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("seen_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_workers"),
    )
    op.create_table(
        "graphs",
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("graph_id", sa.String(length=71), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.Integer(), nullable=False),
        sa.Column("summary", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["graph_id"], ["graph_blobs.id"], name="fk_graphs_graph_id"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_graphs_tenant_id"),
        sa.PrimaryKeyConstraint("tenant_id", "graph_id", name="pk_graphs"),
    )
    with op.batch_alter_table("graphs", schema=None) as batch_op:
        batch_op.create_index("ix_graphs_graph_id", ["graph_id"], unique=False)
        batch_op.create_index(
            "ix_graphs_listed", ["tenant_id", "created_at", "graph_id"], unique=False
        )

    op.create_table(
        "hardware",
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("hardware_id", sa.String(length=71), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("document", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_hardware_tenant_id"),
        sa.PrimaryKeyConstraint("tenant_id", "hardware_id", name="pk_hardware"),
    )
    with op.batch_alter_table("hardware", schema=None) as batch_op:
        batch_op.create_index(
            "ix_hardware_listed", ["tenant_id", "created_at", "hardware_id"], unique=False
        )

    op.create_table(
        "idempotency",
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("request_hash", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("headers", sa.JSON(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_idempotency_tenant_id"),
        sa.PrimaryKeyConstraint("tenant_id", "key", name="pk_idempotency"),
    )
    with op.batch_alter_table("idempotency", schema=None) as batch_op:
        batch_op.create_index("ix_idempotency_created_at", ["created_at"], unique=False)

    op.create_table(
        "jobs",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("content_id", sa.String(length=71), nullable=False),
        sa.Column("graph_id", sa.String(length=71), nullable=False),
        sa.Column("question", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("stage", sa.Text(), nullable=False),
        sa.Column("progress", sa.Double(), nullable=False),
        sa.Column("error", sa.JSON(), nullable=True),
        sa.Column("cancel_requested", sa.Boolean(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("lease_token", sa.String(length=32), nullable=True),
        sa.Column("lease_expires_at", sa.Double(), nullable=True),
        sa.Column("rung_at", sa.Double(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("key_id", sa.String(length=32), nullable=True),
        sa.Column("request_id", sa.String(length=64), nullable=False),
        sa.Column("trace", sa.String(length=64), nullable=True),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_jobs_tenant_id"),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
    )
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.create_index("ix_jobs_content", ["tenant_id", "content_id"], unique=False)
        batch_op.create_index("ix_jobs_graph", ["tenant_id", "graph_id"], unique=False)
        batch_op.create_index("ix_jobs_listed", ["tenant_id", "created_at", "id"], unique=False)
        batch_op.create_index("ix_jobs_swept", ["state", "rung_at"], unique=False)
        batch_op.create_index(
            "uq_jobs_single_flight",
            ["tenant_id", "content_id"],
            unique=True,
            sqlite_where=sa.text("state IN ('queued', 'running', 'done') AND NOT cancel_requested"),
            postgresql_where=sa.text(
                "state IN ('queued', 'running', 'done') AND NOT cancel_requested"
            ),
        )

    op.create_table(
        "keys",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("secret_hash", sa.String(length=64), nullable=False),
        sa.Column("scopes", sa.String(length=100), nullable=False),
        sa.Column("rate_per_s", sa.Double(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("revoked_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_keys_tenant_id"),
        sa.PrimaryKeyConstraint("id", name="pk_keys"),
    )
    with op.batch_alter_table("keys", schema=None) as batch_op:
        batch_op.create_index("ix_keys_tenant_id", ["tenant_id"], unique=False)

    op.create_table(
        "results",
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("content_id", sa.String(length=71), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("graph_id", sa.String(length=71), nullable=False),
        sa.Column("answer_id", sa.String(length=71), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.Column("etag", sa.String(length=80), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_results_tenant_id"),
        sa.PrimaryKeyConstraint("tenant_id", "content_id", name="pk_results"),
    )
    with op.batch_alter_table("results", schema=None) as batch_op:
        batch_op.create_index("ix_results_answer", ["tenant_id", "answer_id"], unique=False)


def downgrade() -> None:

    with op.batch_alter_table("results", schema=None) as batch_op:
        batch_op.drop_index("ix_results_answer")

    op.drop_table("results")
    with op.batch_alter_table("keys", schema=None) as batch_op:
        batch_op.drop_index("ix_keys_tenant_id")

    op.drop_table("keys")
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.drop_index(
            "uq_jobs_single_flight",
            sqlite_where=sa.text("state IN ('queued', 'running', 'done') AND NOT cancel_requested"),
            postgresql_where=sa.text(
                "state IN ('queued', 'running', 'done') AND NOT cancel_requested"
            ),
        )
        batch_op.drop_index("ix_jobs_swept")
        batch_op.drop_index("ix_jobs_listed")
        batch_op.drop_index("ix_jobs_graph")
        batch_op.drop_index("ix_jobs_content")

    op.drop_table("jobs")
    with op.batch_alter_table("idempotency", schema=None) as batch_op:
        batch_op.drop_index("ix_idempotency_created_at")

    op.drop_table("idempotency")
    with op.batch_alter_table("hardware", schema=None) as batch_op:
        batch_op.drop_index("ix_hardware_listed")

    op.drop_table("hardware")
    with op.batch_alter_table("graphs", schema=None) as batch_op:
        batch_op.drop_index("ix_graphs_listed")
        batch_op.drop_index("ix_graphs_graph_id")

    op.drop_table("graphs")
    op.drop_table("workers")
    op.drop_table("tenants")
    op.drop_table("graph_blobs")
    with op.batch_alter_table("audit", schema=None) as batch_op:
        batch_op.drop_index("ix_audit_listed")
        batch_op.drop_index("ix_audit_at")

    op.drop_table("audit")
