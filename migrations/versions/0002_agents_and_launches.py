"""Agents, launches, what they report; keys of agents; versions of profiles."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "reports",
        sa.Column("agent_id", sa.String(length=64), nullable=False),
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("received_at", sa.Double(), nullable=False),
        sa.Column("refused", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("agent_id", "id", name="pk_reports"),
    )
    with op.batch_alter_table("reports", schema=None) as batch_op:
        batch_op.create_index("ix_reports_received_at", ["received_at"], unique=False)

    op.create_table(
        "agents",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("key_id", sa.String(length=32), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("seen_at", sa.Double(), nullable=False),
        sa.Column("lease_expires_at", sa.Double(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("boot_id", sa.String(length=64), nullable=False),
        sa.Column("inventory", sa.JSON(), nullable=False),
        sa.Column("inventory_hash", sa.String(length=100), nullable=False),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("drained", sa.Boolean(), nullable=False),
        sa.Column("draining", sa.Boolean(), nullable=False),
        sa.Column("drain_reason", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_agents_tenant_id"),
        sa.PrimaryKeyConstraint("id", name="pk_agents"),
    )
    with op.batch_alter_table("agents", schema=None) as batch_op:
        batch_op.create_index("ix_agents_listed", ["tenant_id", "created_at", "id"], unique=False)
        batch_op.create_index("ix_agents_swept", ["state", "lease_expires_at"], unique=False)

    op.create_table(
        "enrolments",
        sa.Column("token_hash", sa.String(length=64), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("made_once_hash", sa.String(length=64), nullable=True),
        sa.Column("used_at", sa.Double(), nullable=True),
        sa.Column("agent_id", sa.String(length=64), nullable=True),
        sa.Column("once_hash", sa.String(length=64), nullable=True),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_enrolments_tenant_id"),
        sa.PrimaryKeyConstraint("token_hash", name="pk_enrolments"),
    )
    with op.batch_alter_table("enrolments", schema=None) as batch_op:
        batch_op.create_index("ix_enrolments_expires_at", ["expires_at"], unique=False)
        batch_op.create_index("ix_enrolments_once", ["tenant_id", "made_once_hash"], unique=False)

    op.create_table(
        "launches",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("ending", sa.String(length=16), nullable=True),
        sa.Column("request", sa.JSON(), nullable=False),
        sa.Column("plan", sa.LargeBinary(), nullable=True),
        sa.Column("summary", sa.JSON(), nullable=False),
        sa.Column("graph_id", sa.String(length=71), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("placed_at", sa.Double(), nullable=True),
        sa.Column("rendezvous_host", sa.String(length=255), nullable=True),
        sa.Column("rendezvous_port", sa.Integer(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("time_limit_s", sa.Double(), nullable=True),
        sa.Column("log_lines", sa.BigInteger(), nullable=False),
        sa.Column("log_bytes", sa.BigInteger(), nullable=False),
        sa.Column("log_dropped", sa.BigInteger(), nullable=False),
        sa.Column("key_id", sa.String(length=32), nullable=True),
        sa.Column("request_id", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_launches_tenant_id"),
        sa.PrimaryKeyConstraint("id", name="pk_launches"),
    )
    with op.batch_alter_table("launches", schema=None) as batch_op:
        batch_op.create_index("ix_launches_listed", ["tenant_id", "created_at", "id"], unique=False)
        batch_op.create_index("ix_launches_swept", ["state", "placed_at"], unique=False)

    op.create_table(
        "assignments",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("launch_id", sa.String(length=64), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("agent_id", sa.String(length=64), nullable=False),
        sa.Column("agent_name", sa.String(length=200), nullable=False),
        sa.Column("node_rank", sa.Integer(), nullable=False),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("stopping", sa.Boolean(), nullable=False),
        sa.Column("token", sa.String(length=32), nullable=True),
        sa.Column("heard", sa.Boolean(), nullable=False),
        sa.Column("lease_expires_at", sa.Double(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("claimed_at", sa.Double(), nullable=True),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("peak_rss_bytes", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["launch_id"], ["launches.id"], name="fk_assignments_launch_id"),
        sa.PrimaryKeyConstraint("id", name="pk_assignments"),
    )
    with op.batch_alter_table("assignments", schema=None) as batch_op:
        batch_op.create_index("ix_assignments_agent", ["agent_id", "state"], unique=False)
        batch_op.create_index("ix_assignments_swept", ["state", "lease_expires_at"], unique=False)
        batch_op.create_index(
            "uq_assignments_rank", ["launch_id", "attempt", "node_rank"], unique=True
        )

    op.create_table(
        "launch_logs",
        sa.Column("launch_id", sa.String(length=64), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("stream", sa.String(length=16), nullable=False),
        sa.Column("line", sa.BigInteger(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("through_bytes", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["launch_id"], ["launches.id"], name="fk_launch_logs_launch_id"),
        sa.PrimaryKeyConstraint("launch_id", "number", name="pk_launch_logs"),
    )
    op.create_table(
        "runs",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("launch_id", sa.String(length=64), nullable=False),
        sa.Column("assignment_id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("graph_id", sa.String(length=71), nullable=False),
        sa.Column("graph_name", sa.Text(), nullable=False),
        sa.Column("hardware_id", sa.String(length=71), nullable=False),
        sa.Column("hardware_name", sa.Text(), nullable=False),
        sa.Column("device_kind", sa.String(length=100), nullable=False),
        sa.Column("iteration_error", sa.Double(), nullable=True),
        sa.Column("compute_error", sa.Double(), nullable=True),
        sa.Column("communication_error", sa.Double(), nullable=True),
        sa.Column("peak_error", sa.Double(), nullable=True),
        sa.Column("document", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["launch_id"], ["launches.id"], name="fk_runs_launch_id"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_runs_tenant_id"),
        sa.PrimaryKeyConstraint("id", name="pk_runs"),
    )
    with op.batch_alter_table("runs", schema=None) as batch_op:
        batch_op.create_index(
            "ix_runs_hardware", ["tenant_id", "hardware_id", "created_at"], unique=False
        )
        batch_op.create_index("ix_runs_launch", ["launch_id"], unique=False)
        batch_op.create_index("ix_runs_listed", ["tenant_id", "created_at", "id"], unique=False)

    with op.batch_alter_table("hardware", schema=None) as batch_op:
        batch_op.add_column(sa.Column("version", sa.Integer(), server_default="1", nullable=False))
        batch_op.add_column(sa.Column("previous_id", sa.String(length=71), nullable=True))

    # Profiles of one name become its versions, in the order in which they came.
    op.execute(
        "UPDATE hardware SET version = (SELECT count(*) FROM hardware AS other"
        " WHERE other.tenant_id = hardware.tenant_id AND other.name = hardware.name"
        " AND (other.created_at < hardware.created_at OR (other.created_at = hardware.created_at"
        " AND other.hardware_id <= hardware.hardware_id)))"
    )
    with op.batch_alter_table("keys", schema=None) as batch_op:
        batch_op.add_column(sa.Column("agent_id", sa.String(length=64), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("keys", schema=None) as batch_op:
        batch_op.drop_column("agent_id")

    with op.batch_alter_table("hardware", schema=None) as batch_op:
        batch_op.drop_column("previous_id")
        batch_op.drop_column("version")

    with op.batch_alter_table("runs", schema=None) as batch_op:
        batch_op.drop_index("ix_runs_listed")
        batch_op.drop_index("ix_runs_launch")
        batch_op.drop_index("ix_runs_hardware")

    op.drop_table("runs")
    op.drop_table("launch_logs")
    with op.batch_alter_table("assignments", schema=None) as batch_op:
        batch_op.drop_index("uq_assignments_rank")
        batch_op.drop_index("ix_assignments_swept")
        batch_op.drop_index("ix_assignments_agent")

    op.drop_table("assignments")
    with op.batch_alter_table("launches", schema=None) as batch_op:
        batch_op.drop_index("ix_launches_swept")
        batch_op.drop_index("ix_launches_listed")

    op.drop_table("launches")
    with op.batch_alter_table("enrolments", schema=None) as batch_op:
        batch_op.drop_index("ix_enrolments_once")
        batch_op.drop_index("ix_enrolments_expires_at")

    op.drop_table("enrolments")
    with op.batch_alter_table("agents", schema=None) as batch_op:
        batch_op.drop_index("ix_agents_swept")
        batch_op.drop_index("ix_agents_listed")

    op.drop_table("agents")
    with op.batch_alter_table("reports", schema=None) as batch_op:
        batch_op.drop_index("ix_reports_received_at")

    op.drop_table("reports")
